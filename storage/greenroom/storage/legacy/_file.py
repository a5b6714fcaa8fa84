# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# apsw's stubs leave the element types of rows and arrays open.
"""A database file of the older system: opened to read only, and what a value is worth.

The file is somebody's and may be anything. Only real tables are read, because a view
would run whatever the file says; every text is read as bytes and made text that can be
kept; sizes are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import apsw

from greenroom.protocol import StorageError, safe_text

_MILLISECONDS: Final = 1e11
"""Larger than any time in seconds that makes sense: it is in milliseconds."""


class LegacyError(StorageError):
    """The file can't be taken over; nothing was changed."""

    code = "legacy_error"
    hint = "name the database file of the older system, as it is on disk"


@contextmanager
def opened(path: Path, max_bytes: int) -> Generator[apsw.Connection]:
    """Open *path* to read it; no value or row of more than *max_bytes* is.

    Raises:
        LegacyError: there is no such file, or what SQLite raised while it was read.
    """
    shown = repr(str(path)[:200])
    if not path.is_file():
        raise LegacyError(f"there is no file {shown}")
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        with closing(db):
            db.limit(apsw.SQLITE_LIMIT_LENGTH, max_bytes)
            db.execute("PRAGMA trusted_schema = 0; PRAGMA cell_size_check = 1")
            yield db
    except apsw.Error as exc:
        raise LegacyError(f"{shown} can't be read: {exc}") from exc


def columns_of(db: apsw.Connection, table: str) -> frozenset[str]:
    """Return the columns of the real *table*; none when there is no such table."""
    real = db.execute(
        "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?"
        " AND sql NOT LIKE 'CREATE VIRTUAL%'",
        (table,),
    ).fetchone()
    if real is None:
        return frozenset()
    found = db.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
    return frozenset(str(name) for (name,) in found)


def fetched(
    db: apsw.Connection,
    sql: str,
    *values: Any,  # noqa: ANN401 - as in the file
) -> list[tuple[Any, ...]]:
    """Return all rows of *sql*; the statement bounds how many."""
    return db.execute(sql, values).fetchall()


def as_bytes(name: str, most: int | None = None) -> str:
    """Return the SQL of a text column as bytes: text that is no UTF-8 is read too.

    What has more than *most* bytes is ``NULL``.
    """
    if most is None:
        return f"CAST({name} AS BLOB)"
    return f"CASE WHEN octet_length({name}) <= {most} THEN CAST({name} AS BLOB) END"


def text_of(value: object, limit: int | None = None) -> str:
    """Return the text in *value*, bytes as read by `as_bytes`; '' for anything else."""
    if not isinstance(value, bytes):
        return ""
    return safe_text(value.decode("utf-8", "replace"))[:limit]


def seconds_of(value: object) -> float:
    """Return a time in seconds since the epoch; 0 for what is none."""
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return 0.0
    return float(value) / 1_000 if value > _MILLISECONDS else float(value)


def named(names: Iterable[str], row: tuple[Any, ...]) -> dict[str, Any]:
    """Return the values of *row* by name."""
    return dict(zip(names, row, strict=True))
