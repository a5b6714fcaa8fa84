"""One message followed through all its hops, by the ids that every record carries.

A hop is a place that a message went through and left a record at: the endpoint that
took it, the inbox, the session's transcript, its runs, their requests and attempts,
their tools (PER-08). All of them are facts on the session's tape, so following a
message needs nothing but that tape; what was sent in an attempt is kept apart
(`Reader.traces`), and forgetting it takes no hop away.

Entries are untrusted data: one whose payload can't be read says less, and stops
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, final

import attrs
import msgspec

from greenroom.protocol import (
    Fact,
    FactKind,
    MessageId,
    RunId,
    SessionId,
    SourceType,
    TapeEntry,
    canonical_json,
    command_of,
    safe_text,
)

from ._store import Reader
from .names import (
    ATTEMPT_COMPLETED,
    ENDPOINT_RECEIVED,
    INPUT_RECORDED,
    MESSAGE_RECORDED,
    VIEW_ASSEMBLED,
)

HopKind = Literal[
    "endpoint", "input", "message", "run", "request", "attempt", "tool", "end"
]

MAX_ENDPOINT: Final = 200
"""Characters of an endpoint's name, and of a connection's."""

_STEERS: Final = 10
"""Messages of the user that one turn is looked for behind."""

# By what a fact says which message it is of.
_BY_SOURCE: Final[dict[str, HopKind]] = {
    ENDPOINT_RECEIVED: "endpoint",
    INPUT_RECORDED: "input",
    MESSAGE_RECORDED: "message",
}
_BY_PAYLOAD: Final[dict[str, HopKind]] = {
    "execution/run_started": "run",
    VIEW_ASSEMBLED: "request",
    ATTEMPT_COMPLETED: "attempt",
    "execution/dispatch_committed": "tool",
    "tool/called": "tool",
    "tool/settled": "tool",
}
_BY_RUN: Final[dict[str, HopKind]] = {
    "execution/tool_outcome": "tool",
    "execution/run_terminal": "end",
}
_NAMES_RUN: Final = frozenset(
    {
        "execution/run_started",
        "execution/dispatch_committed",
        ATTEMPT_COMPLETED,
        *_BY_RUN,
    }
)
"""Facts whose source is the run."""


class Hop(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One record that a message left."""

    session_id: SessionId
    message_id: MessageId
    """The message that the record is of: the user's, or the answer to it."""
    run_id: RunId | None
    """The run that it is of; of what came before the first run, that one. ``None``
    while there was none."""
    hop: HopKind
    fact: str
    """The name of the fact."""
    detail: str
    """What it says, in a few words. Untrusted text."""
    seq: int
    at: float
    """Seconds since the epoch."""


class _Said(msgspec.Struct, rename="camel"):
    message_id: str = ""
    endpoint: str = ""
    connection: str = ""
    tool_name: str = ""
    name: str = ""
    run_kind: str = ""
    request_seq: int | None = None
    physical_attempt: int | None = None
    status: str = ""
    state: str = ""
    outcome: str = ""
    stop_reason: str | None = None
    error_code: str | None = None
    is_error: bool = False


def endpoint_fact(
    message_id: MessageId, endpoint: str, connection: str, *, at: float
) -> Fact:
    """Return that *endpoint* took the command that the user's message is made from."""
    said = {
        "messageId": message_id,
        "endpoint": safe_text(endpoint)[:MAX_ENDPOINT],
        "connection": safe_text(connection)[:MAX_ENDPOINT],
    }
    return Fact(
        kind=FactKind.EVENT,
        name=ENDPOINT_RECEIVED,
        source_type=SourceType.RUNTIME_EVENT,
        source_id=message_id,
        payload=canonical_json(said),
        provenance_key=f"endpoint:{message_id}:{at!r}",
    )


def messages_of_turn(
    reader: Reader, scope: SessionId, message_id: str
) -> frozenset[str]:
    """Return the messages of the turn that *message_id* is of, by what names them.

    The user's, as the ids of the messages and of the commands that brought them, and
    the answer. Empty when the session has no such message.
    """
    found = reader.message(scope, message_id)
    if found is None:
        return frozenset()
    newest = found.order_seq + (_STEERS if found.role == "user" else 0)
    page = reader.messages(scope, newest + 1, 2 * _STEERS)
    at = next((n for n, each in enumerate(page) if each.id == found.id), 0)
    end = next((n for n in range(at, len(page)) if page[n].role == "assistant"), at)
    start = end
    while start > 0 and page[start - 1].role == "user":
        start -= 1
    turn = [found, *page[start : end + 1]]
    commands = [command_of(each) for each in turn if each.role == "user"]
    return frozenset([*commands, *(each.id for each in turn)])


@final
@attrs.define(eq=False)
class Trail:
    """Collects the hops of a turn's messages from a tape, entry by entry."""

    messages: frozenset[str]
    """What names them; `messages_of_turn`."""
    _hops: list[Hop] = attrs.field(factory=list[Hop], init=False)
    _runs: dict[str, str] = attrs.field(factory=dict[str, str], init=False)
    """The message of each run, in the order in which they began."""
    _statuses: dict[str, str] = attrs.field(factory=dict[str, str], init=False)

    def take(self, entries: Iterable[TapeEntry]) -> None:
        """Look at the next *entries*, in the order of the tape."""
        for entry in entries:
            self._take(entry)

    @property
    def hops(self) -> list[Hop]:
        """What was found, in the order of the tape."""
        first = next(iter(self._runs), None)
        return [
            msgspec.structs.replace(hop, run_id=RunId(first))
            if hop.run_id is None and first is not None
            else hop
            for hop in self._hops
        ]

    def _take(self, entry: TapeEntry) -> None:
        fact = entry.fact
        hop = _BY_SOURCE.get(fact.name) or _BY_PAYLOAD.get(fact.name)
        hop = hop or _BY_RUN.get(fact.name)
        if hop is None:
            return
        said = _said(fact)
        message_id = self._message_of(fact, said)
        if message_id is None or self._is_told(fact, said):
            return
        if hop == "run":
            self._runs[fact.source_id] = message_id
        run_id = fact.source_id if fact.name in _NAMES_RUN else self._latest_run
        self._hops.append(
            Hop(
                session_id=entry.session_id,
                message_id=MessageId(message_id),
                run_id=None if run_id is None else RunId(run_id),
                hop=hop,
                fact=fact.name,
                detail=_detail(said),
                seq=entry.seq,
                at=entry.created_at,
            )
        )

    @property
    def _latest_run(self) -> str | None:
        return next(reversed(self._runs), None)

    def _message_of(self, fact: Fact, said: _Said) -> str | None:
        if fact.name in _BY_RUN:
            return self._runs.get(fact.source_id)
        named = fact.source_id if fact.name in _BY_SOURCE else said.message_id
        return named if named in self.messages else None

    def _is_told(self, fact: Fact, said: _Said) -> bool:
        # A message has many revisions; what it has become is told once.
        if fact.name != MESSAGE_RECORDED:
            return False
        before = self._statuses.get(fact.source_id)
        self._statuses[fact.source_id] = said.status
        return before == said.status


def _said(fact: Fact) -> _Said:
    try:
        return msgspec.json.decode(fact.payload, type=_Said)
    except (msgspec.DecodeError, RecursionError):
        return _Said()


def _detail(said: _Said) -> str:
    numbers = [
        f"{what} {number}"
        for what, number in (
            ("request", said.request_seq),
            ("attempt", said.physical_attempt),
        )
        if number is not None
    ]
    words = (
        said.endpoint,
        said.connection,
        said.tool_name or said.name,
        said.run_kind,
        *numbers,
        said.status,
        said.state,
        said.outcome,
        said.stop_reason,
        said.error_code,
        "failed" if said.is_error else "",
    )
    return " ".join(word for word in words if word)
