"""The store on SQLite: the embedded default.

WAL, ``synchronous=FULL``, one writer connection per process; several processes
share one file. What only SQLite has stays in here.
"""

from __future__ import annotations

from ._care import (
    back_up as back_up,
    compact as compact,
    complaints as complaints,
)
from ._connection import reading as reading
from ._open import open_reader as open_reader, open_store as open_store
from ._store import SqliteReader as SqliteReader, SqliteStore as SqliteStore
