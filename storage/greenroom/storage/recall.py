"""What a model may look up again of its tape, and of the tapes linked to it (TAP-15).

Nothing is found or shown that is audit, settings, or of a message that was taken back
(TAP-10), nor a call or a result that its message has another one of by now (TAP-09); of
a linked tape nothing behind its frozen head (TAP-13). An attachment is found by the
words at its start, and a message by those of its first ones (TAP-16); shown is all of
it, within the bounds of whoever asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import msgspec

from greenroom.protocol import (
    Block,
    FactKind,
    MessageRecord,
    SessionId,
    TapeEntry,
    TextBlock,
    ToolCallBlock,
)

from ._limits import MAX_HITS, clamp
from ._store import Reader
from ._words import holds, query_words, said, searchable_text, snippet_of
from .links import linked_tape
from .names import (
    MESSAGE_RECORDED,
    SESSION_ARCHIVED,
    SESSION_CONFIGURED,
    SESSION_START,
    is_audit,
    tool_facts,
)

MAX_ATTACHMENTS: Final = 8
MAX_ATTACHMENT_CHARS: Final = 4_000
MAX_ATTACHED_CHARS: Final = 16_000

MAX_RECALLED: Final = 1_000
"""Entries that are looked at in one call."""

_ATTACHED: Final = '<resource uri="'
"""How a text begins that is a file that was sent along."""

_HIDDEN: Final = (SESSION_START, SESSION_CONFIGURED, SESSION_ARCHIVED)


class _OfMessage(msgspec.Struct, rename="camel"):
    message_id: str | None = None
    tool_call_id: str = ""


class _Tool(msgspec.Struct, rename="camel"):
    name: str = ""
    arguments: str = ""
    response: str = ""


@attrs.frozen
class TapeHit:
    """An entry that holds all words of a query."""

    seq: int
    what: str
    """``user``, ``assistant``, or what kind of entry it is."""
    at: float
    snippet: str


@attrs.frozen
class Recalled:
    """An entry as it may be read."""

    seq: int
    what: str
    at: float
    text: str


def search_recall(
    reader: Reader,
    scope: SessionId,
    query: str,
    *,
    child: SessionId | None = None,
    limit: int = 20,
) -> list[TapeHit]:
    """Return entries that hold all words of *query*, the newest first.

    Args:
        reader: reads the store.
        scope: whose tape.
        query: words; quotes and operators are literal.
        child: search the tape of this linked child instead.
        limit: 1 to 100.

    Raises:
        TapeNotLinkedError: the child's tape may not be read.
    """
    tape, until = _chosen(reader, scope, child)
    words = query_words(query)
    hits = _hits(
        reader, tape, reader.search_tape(tape, query, until=until, limit=MAX_HITS)
    )
    found = (
        TapeHit(entry.seq, _what(entry), entry.created_at, snippet_of(text, words))
        for entry, text in hits
        if holds(text, words)
    )
    return [hit for hit, _ in zip(found, range(clamp(limit, MAX_HITS)), strict=False)]


def recall_entries(
    reader: Reader,
    scope: SessionId,
    seqs: Sequence[int],
    *,
    around: int = 0,
    child: SessionId | None = None,
) -> Iterator[Recalled]:
    """Yield the entries *seqs* and up to *around* on each side, in their order.

    What may not be read, and what is not there, is left out.

    Raises:
        TapeNotLinkedError: the child's tape may not be read.
    """
    tape, until = _chosen(reader, scope, child)
    wanted = {near for seq in seqs for near in range(seq - around, seq + around + 1)}
    for seq in sorted(wanted)[:MAX_RECALLED]:
        if seq < 1 or (until is not None and seq > until):
            continue
        for entry in reader.page(tape, seq - 1, 1).entries:
            text = readable_text(entry)
            if entry.seq == seq and text and _is_in_force(reader, entry):
                yield Recalled(seq, _what(entry), entry.created_at, text)


def readable_text(entry: TapeEntry) -> str:
    """Return what of *entry* may be read by a model; empty where nothing may."""
    fact = entry.fact
    if is_audit(fact.name) or fact.name in _HIDDEN:
        return ""
    if fact.name == MESSAGE_RECORDED:
        return _words_of(msgspec.json.decode(fact.payload, type=MessageRecord))
    if fact.kind in (FactKind.TOOL_CALL, FactKind.TOOL_RESULT):
        tool = msgspec.json.decode(fact.payload, type=_Tool)
        return f"{tool.name}\n{tool.arguments or tool.response}"
    return fact.payload


def searched_text(record: MessageRecord) -> str:
    """Return what a message of a tape is found by, its attachments within bounds."""
    blocks: list[Block] = []
    attachments, room = 0, MAX_ATTACHED_CHARS
    for block in record.blocks:
        if isinstance(block, TextBlock) and block.text.startswith(_ATTACHED):
            attachments += 1
            most = min(MAX_ATTACHMENT_CHARS, room)
            kept = block.text[:most] if attachments <= MAX_ATTACHMENTS else ""
            room -= len(kept)
            block = msgspec.structs.replace(block, text=kept)
        blocks.append(block)
    return said(msgspec.structs.replace(record, blocks=tuple(blocks)))


def _chosen(
    reader: Reader, scope: SessionId, child: SessionId | None
) -> tuple[SessionId, int | None]:
    if child is None or child == scope:
        return scope, None
    linked = linked_tape(reader, scope, child)
    return linked.session_id, linked.head


def _hits(
    reader: Reader, tape: SessionId, seqs: Sequence[int]
) -> Iterator[tuple[TapeEntry, str]]:
    for seq in seqs:
        for entry in reader.page(tape, seq - 1, 1).entries:
            if _is_in_force(reader, entry):
                yield entry, _found_by(reader, entry)


def _found_by(reader: Reader, entry: TapeEntry) -> str:
    if entry.fact.name != MESSAGE_RECORDED:
        return searchable_text(entry.fact)
    revision = msgspec.json.decode(entry.fact.payload, type=MessageRecord)
    whole = reader.message(entry.session_id, revision.id)
    # A revision holds some of the blocks; one that came later is not told of here.
    if whole is not None and whole.updated_at <= revision.updated_at:
        revision = whole
    return searched_text(revision)


def _is_in_force(reader: Reader, entry: TapeEntry) -> bool:
    fact = entry.fact
    if fact.name == MESSAGE_RECORDED:
        return reader.message(entry.session_id, fact.source_id) is not None
    if fact.kind not in (FactKind.TOOL_CALL, FactKind.TOOL_RESULT):
        return True
    of = msgspec.json.decode(fact.payload, type=_OfMessage)
    if of.message_id is None:
        return True
    message = reader.message(entry.session_id, of.message_id)
    if message is None:
        return False
    known = [
        each.payload
        for block in message.blocks
        if isinstance(block, ToolCallBlock)
        and block.call_id == of.tool_call_id
        and block.status in ("success", "error")
        for each in tool_facts(message.id, block)
    ]
    return not known or fact.payload in known


def _what(entry: TapeEntry) -> str:
    if entry.fact.name != MESSAGE_RECORDED:
        kind = entry.fact.kind
        return entry.fact.name if kind in (FactKind.EVENT, FactKind.ANCHOR) else kind
    return msgspec.json.decode(entry.fact.payload, type=MessageRecord).role


def _words_of(record: MessageRecord) -> str:
    parts: list[str] = []
    for block in record.blocks:
        if isinstance(block, TextBlock):
            parts.append(block.text)
        elif isinstance(block, ToolCallBlock):
            parts.append(f"[called {block.name}, {block.call_id}]")
    return "\n".join(parts)
