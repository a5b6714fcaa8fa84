# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# apsw's stubs leave the element types of rows and arrays open.
"""Conversations in a database of the older system, one at a time.

It kept them in two ways. The newer: ``new_sessions`` and ``deepchat_messages``, with
rows for what a message holds, which are preferred to the JSON in its header. The
oldest: ``conversations`` and ``messages``. Where both are there the newer one is read,
because the older system had moved what was in the other.

Memory is bounded by one message: rows are listed by their numbers, and read one by one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, final

import apsw
import attrs

from greenroom.protocol import MessageMetadata, MessageStatus, sha256_hex

from ._blocks import MAX_BLOCKS, OldBlock, blocks_in, file_note, metadata_of
from ._file import (
    LegacyError,
    as_bytes,
    columns_of,
    fetched,
    named,
    opened,
    seconds_of,
    text_of,
)

MAX_THREADS: Final = 100_000
MAX_MESSAGES: Final = 100_000
"""Of one thread; the newest are left out."""

_MAX_ROW: Final = 64 << 20
_MAX_TEXT: Final = 16 << 20
_SHORT: Final = 1_000


@attrs.frozen
class Thread:
    """A conversation, without what was said."""

    row: int
    raw_id: Any
    """As it is in the file, to find what belongs to it."""
    source_id: str
    title: str
    agent_id: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    system_prompt: str = ""
    summary: str = ""
    """What stands for its older messages."""
    summary_cursor: int = 0
    """Messages of a lower order are in the summary."""
    left_out: str = ""
    """Why it is no session of its own; empty: it is."""

    @property
    def identity(self) -> str:
        """Tells it from every other one, in whichever copy of the file."""
        return sha256_hex(f"{self.source_id}\x00{self.created_at!r}")[:32]


@attrs.frozen
class OldMessage:
    """One message, in their blocks."""

    order: int
    role: Literal["user", "assistant"]
    status: MessageStatus
    blocks: tuple[OldBlock, ...]
    metadata: MessageMetadata
    created_at: float
    updated_at: float
    problem: str = ""
    """What of it could not be read."""


@attrs.frozen
class _Form:
    threads: str
    messages: str
    thread_of: str
    """The column of a message that names its thread."""


_NEWER: Final = _Form("new_sessions", "deepchat_messages", "session_id")
_OLDEST: Final = _Form("conversations", "messages", "conversation_id")
_NEEDED: Final = ("id", "role", "content")
_ROLES: Final[dict[str, Literal["user", "assistant"]]] = {
    "user": "user",
    "assistant": "assistant",
}
_STATUSES: Final[dict[str, MessageStatus]] = {"pending": "pending", "error": "error"}


@contextmanager
def open_threads(path: Path) -> Generator[OldThreads]:
    """Open the conversations in the database at *path*.

    Raises:
        LegacyError: it is no such database, or holds too many.
    """
    with opened(path, _MAX_ROW) as db:
        for form in (_NEWER, _OLDEST):
            columns = columns_of(db, form.messages)
            found = {*_NEEDED, form.thread_of} <= columns
            if found and "id" in columns_of(db, form.threads):
                yield OldThreads(db, form)
                return
        raise LegacyError("it has no conversations of the older system")


@final
@attrs.define(eq=False)
class OldThreads:
    """What is in an open database."""

    _db: apsw.Connection
    _form: _Form
    _columns: dict[str, frozenset[str]] = attrs.field(
        factory=dict[str, frozenset[str]], init=False
    )

    def numbers(self) -> list[int]:
        """Return the rows of all threads, in the order in which they were made."""
        sql = f"SELECT rowid FROM {self._form.threads} ORDER BY rowid LIMIT ?"
        found = fetched(self._db, sql, MAX_THREADS + 1)
        if len(found) > MAX_THREADS:
            raise LegacyError(f"it holds more than {MAX_THREADS} conversations")
        return [number for (number,) in found]

    def thread(self, number: int) -> Thread:
        """Return the thread in row *number*.

        Raises:
            LegacyError: it can't be read.
        """
        with _readable():
            return self._thread(number)

    def messages(self, thread: Thread) -> Iterator[OldMessage]:
        """Yield the messages of *thread*, oldest first.

        Raises:
            LegacyError: one can't be read; nothing comes after it.
        """
        form = self._form
        order = "order_seq, " if "order_seq" in self._has(form.messages) else ""
        sql = (
            f"SELECT rowid FROM {form.messages} WHERE {form.thread_of} = ?"
            f" ORDER BY {order}rowid LIMIT ?"
        )
        with _readable():
            found = fetched(self._db, sql, thread.raw_id, MAX_MESSAGES)
        for (number,) in found:
            with _readable():
                message = self._message(number)
            if message is not None:
                yield message

    def count(self, thread: Thread) -> int:
        """Return how many messages *thread* has."""
        form = self._form
        sql = f"SELECT count(*) FROM {form.messages} WHERE {form.thread_of} = ?"
        with _readable():
            ((count,),) = fetched(self._db, sql, thread.raw_id)
        return count

    #### Rows

    def _thread(self, number: int) -> Thread:
        texts = ("id", "title", "agent_id", "session_kind")
        numbers = ("created_at", "updated_at", "created", "is_draft")
        row = self._row(self._form.threads, "rowid", number, texts, numbers)
        sql = f"SELECT id FROM {self._form.threads} WHERE rowid = ?"
        ((raw_id,),) = fetched(self._db, sql, number)
        source_id = text_of(row.get("id"), _SHORT)
        created = seconds_of(row.get("created_at", row.get("created")))
        settings = self._settings(raw_id)
        return Thread(
            row=number,
            raw_id=raw_id,
            source_id=source_id,
            title=" ".join(text_of(row.get("title"), _SHORT).split()),
            agent_id=text_of(row.get("agent_id"), _SHORT),
            created_at=created,
            updated_at=max(created, seconds_of(row.get("updated_at"))),
            system_prompt=text_of(settings.get("system_prompt"), _MAX_TEXT),
            summary=text_of(settings.get("summary_text"), _MAX_TEXT),
            summary_cursor=_whole(settings.get("summary_cursor_order_seq")),
            left_out=_left_out(row),
        )

    def _settings(self, raw_id: object) -> dict[str, Any]:
        if self._form is not _NEWER:
            return {}
        texts = ("system_prompt", "summary_text")
        numbers = ("summary_cursor_order_seq",)
        return self._row("deepchat_sessions", "id", raw_id, texts, numbers)

    def _message(self, number: int) -> OldMessage | None:
        texts = ("role", "content", "status", "metadata")
        numbers = ("order_seq", "created_at", "updated_at")
        row = self._row(self._form.messages, "rowid", number, texts, numbers)
        role = _ROLES.get(text_of(row.get("role"), _SHORT))
        if role is None:
            return None
        blocks, problem = self._blocks(number, role, text_of(row.get("content")))
        created = seconds_of(row.get("created_at"))
        return OldMessage(
            order=_whole(row.get("order_seq")),
            role=role,
            status=_STATUSES.get(text_of(row.get("status"), _SHORT), "sent"),
            blocks=tuple(blocks),
            metadata=metadata_of(text_of(row.get("metadata"))),
            created_at=created,
            updated_at=max(created, seconds_of(row.get("updated_at"))),
            problem=problem,
        )

    def _blocks(
        self, number: int, role: str, content: str
    ) -> tuple[list[OldBlock], str]:
        if self._form is _NEWER:
            sql = f"SELECT id FROM {self._form.messages} WHERE rowid = ?"
            ((raw_id,),) = fetched(self._db, sql, number)
            rows = self._user_rows if role == "user" else self._assistant_rows
            if found := rows(raw_id):
                return found, ""
        found = blocks_in(content)
        if found is not None:
            return found, ""
        # Told, and kept as it is.
        return [OldBlock("content", text=content)], "its content is no JSON"

    def _assistant_rows(self, raw_id: object) -> list[OldBlock]:
        texts = (
            "block_type",
            "status",
            "text_content",
            "tool_call_id",
            "tool_name",
            "tool_params",
            "tool_response",
            "action_type",
            "image_mime_type",
        )
        rows = self._rows("deepchat_assistant_blocks", raw_id, texts, "block_index")
        return [_old_block(row) for row in rows]

    def _user_rows(self, raw_id: object) -> list[OldBlock]:
        said = self._rows("deepchat_user_messages", raw_id, ("text",), "rowid")
        files = self._rows("deepchat_user_message_files", raw_id, ("name",), "rowid")
        links = self._rows("deepchat_user_message_links", raw_id, ("url",), "rowid")
        return [
            *(OldBlock("content", text=text_of(row.get("text"))) for row in said),
            *(file_note(text_of(row.get("name"), _SHORT)) for row in files),
            *(OldBlock("content", text=text_of(row.get("url"))) for row in links),
        ]

    def _row(
        self,
        table: str,
        key: str,
        value: object,
        texts: tuple[str, ...],
        numbers: tuple[str, ...],
    ) -> dict[str, Any]:
        names, sql = self._select(table, texts, numbers)
        if key != "rowid" and key not in self._has(table):
            return {}
        found = self._db.execute(f"{sql} WHERE {key} = ?", (value,)).fetchone()
        return {} if found is None else named(names, found)

    def _rows(
        self, table: str, raw_id: object, texts: tuple[str, ...], order: str
    ) -> list[dict[str, Any]]:
        names, sql = self._select(table, texts, ())
        if not {"message_id", texts[0]} <= (has := self._has(table)):
            return []
        order = order if order in has else "rowid"
        sql += f" WHERE message_id = ? ORDER BY {order} LIMIT {MAX_BLOCKS}"
        found = fetched(self._db, sql, raw_id)
        return [named(names, row) for row in found]

    def _select(
        self, table: str, texts: tuple[str, ...], numbers: tuple[str, ...]
    ) -> tuple[list[str], str]:
        has = self._has(table)
        known_texts = [name for name in texts if name in has]
        known_numbers = [name for name in numbers if name in has]
        parts = [*(as_bytes(name, _MAX_TEXT) for name in known_texts), *known_numbers]
        names = [*known_texts, *known_numbers]
        return names, f"SELECT {', '.join(parts) or '1'} FROM {table}"

    def _has(self, table: str) -> frozenset[str]:
        if table not in self._columns:
            self._columns[table] = columns_of(self._db, table)
        return self._columns[table]


@contextmanager
def _readable() -> Generator[None]:
    try:
        yield
    except apsw.Error as exc:
        raise LegacyError(f"a row can't be read: {exc}") from exc


def _left_out(row: dict[str, Any]) -> str:
    if text_of(row.get("session_kind"), _SHORT) == "subagent":
        return "belongs to another conversation"
    return "is a draft" if row.get("is_draft") == 1 else ""


def _old_block(row: dict[str, Any]) -> OldBlock:
    response = row.get("tool_response")
    return OldBlock(
        kind=text_of(row.get("block_type")),
        status=text_of(row.get("status")),
        text=text_of(row.get("text_content")),
        call_id=text_of(row.get("tool_call_id")),
        tool=text_of(row.get("tool_name")),
        arguments=text_of(row.get("tool_params")),
        response=None if response is None else text_of(response),
        action=text_of(row.get("action_type")),
        media_type=text_of(row.get("image_mime_type")),
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0
