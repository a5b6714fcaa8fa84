"""Stores to test with: worlds of processes that share one, and things to put in it.

A world is one database and the processes that use it. A process that is killed says
nothing and closes nothing in order; a stalled one lives, and its beat runs out.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import attrs

from greenroom.protocol import (
    Block,
    DispatchCommitted,
    Fact,
    FactKind,
    MessageId,
    MessageMetadata,
    MessageRecord,
    OperationId,
    RunId,
    RunStarted,
    RunTerminal,
    SessionId,
    SessionSettings,
    SourceType,
    TextBlock,
    ToolOutcome,
    ToolTarget,
)
from greenroom.storage import (
    Grant,
    Member,
    MemoryStore,
    Piece,
    Settled,
    Store,
    Tape,
    bootstrap_facts,
    open_store,
)

SETTINGS = SessionSettings(
    agent_id="default", title="A title", workspace="/w", provider="p", model="m"
)
RUN = RunId("11111111-1111-4111-8111-111111111111")
OTHER_RUN = RunId("22222222-2222-4222-8222-222222222222")
MESSAGE = MessageId("m1")
S1, S2 = SessionId("s1"), SessionId("s2")


@attrs.frozen
class Peer:
    """A process that is in the store."""

    store: Store
    member: Member

    def acquire(self, scope: SessionId = S1, now: float = 1.0) -> Grant:
        """Take a session that must be free."""
        grant = self.store.acquire(self.member, scope, now=now)
        assert isinstance(grant, Grant), grant
        return grant

    def tape(self, scope: SessionId = S1, now: float = 1.0) -> Tape:
        """Take a session and begin its tape if it is empty."""
        tape = Tape(self.acquire(scope, now))
        if tape.head == 0:
            write(self.store, tape.append_piece(bootstrap(scope), now=now))
        return tape


class World(Protocol):
    """One database."""

    def join(self, node: str = "node", ttl: float = 60.0, now: float = 0.0) -> Peer:
        """Start a process that joins."""
        ...

    def kill(self, peer: Peer) -> None:
        """End a process without a word."""
        ...

    def close(self) -> None:
        """End all."""
        ...


@attrs.define(eq=False)
class MemoryWorld:
    """Processes that share a store in memory."""

    make: Callable[[Callable[[str], bool]], Store] = MemoryStore.create
    _dead: set[str] = attrs.field(factory=set)
    _store: Store | None = None

    def join(self, node: str = "node", ttl: float = 60.0, now: float = 0.0) -> Peer:
        """See `World`."""
        if self._store is None:
            self._store = self.make(lambda member: member not in self._dead)
        return Peer(self._store, self._store.join(node, "", ttl, now=now))

    def kill(self, peer: Peer) -> None:
        """See `World`."""
        self._dead.add(peer.member.id)

    def close(self) -> None:
        """See `World`."""


@attrs.define(eq=False)
class SqliteWorld:
    """Processes that share a folder."""

    folder: Path
    open: Callable[[Path], Any] = open_store
    _stores: dict[str, Any] = attrs.field(factory=dict)

    def join(self, node: str = "node", ttl: float = 60.0, now: float = 0.0) -> Peer:
        """See `World`."""
        store = self.open(self.folder)
        member = store.join(node, "", ttl, now=now)
        self._stores[member.id] = store
        return Peer(store, member)

    def kill(self, peer: Peer) -> None:
        """See `World`."""
        self._stores.pop(peer.member.id).close()

    def close(self) -> None:
        """See `World`."""
        for store in self._stores.values():
            store.close()


@contextmanager
def open_world(kind: str, **how: Any) -> Iterator[World]:
    """Make a world of *kind* for as long as the block runs."""
    with tempfile.TemporaryDirectory() as folder:
        world = (
            MemoryWorld(**how)
            if kind == "memory"
            else SqliteWorld(Path(folder) / "state", **how)
        )
        try:
            yield world
        finally:
            world.close()


def open_files() -> int:
    """Return how many files this process has open."""
    return len(os.listdir("/dev/fd"))


#### Things to write


def write(store: Store, *pieces: Piece) -> Any:
    """Run *pieces* as one group and return the last one's value, or raise."""
    settled = run_pieces(store, *pieces)
    for one in settled:
        if one.error is not None:
            raise one.error
    return settled[-1].value


def run_pieces(store: Store, *pieces: Piece) -> list[Settled]:
    """Run *pieces* as one group."""
    return store.run_group(pieces)


def bootstrap(scope: str = S1) -> tuple[Fact, ...]:
    """Return the facts a tape begins with, the same for the same *scope*."""
    return bootstrap_facts(str(uuid.uuid5(uuid.NAMESPACE_URL, scope)), SETTINGS)


def event(number: int, text: str = "", name: str = "note/taken") -> Fact:
    """Return an event whose key is its number."""
    return Fact(
        kind=FactKind.EVENT,
        name=name,
        source_type=SourceType.RUNTIME_EVENT,
        source_id="note",
        source_seq=number,
        payload=f'{{"text":"{text or number}"}}',
    )


def message(
    text: str = "hello",
    *blocks: Block,
    name: str = MESSAGE,
    order: int = 1,
    role: Any = "user",
    status: Any = "sent",
    at: float = 1.0,
    **metadata: Any,
) -> MessageRecord:
    """Return a message with one block of text, or with *blocks*."""
    content = blocks or (TextBlock(id=f"{name}-0", text=text),)  # type: ignore[arg-type]
    return MessageRecord(
        id=MessageId(name),
        order_seq=order,
        role=role,
        status=status,
        blocks=content,
        metadata=MessageMetadata(**metadata),
        created_at=1.0,
        updated_at=at,
    )


def started(run: RunId = RUN, message: MessageId = MESSAGE) -> RunStarted:
    """Return the start of a run."""
    return RunStarted(run_id=run, message_id=message, run_kind="loop")


def dispatch(
    call: str = "call", run: RunId = RUN, seq: int = 1, **changes: Any
) -> DispatchCommitted:
    """Return the dispatch of a call."""
    fields: dict[str, Any] = {
        "operation": OperationId(run, seq, call),
        "message_id": MESSAGE,
        "tool_name": "write_file",
        "tool_source": "agent",
        "arguments_hash": "a" * 64,
        "target": ToolTarget("server"),
    }
    return DispatchCommitted(**(fields | changes))


def outcome(
    call: str = "call", run: RunId = RUN, seq: int = 1, *, is_error: bool = False
) -> ToolOutcome:
    """Return the outcome of a call."""
    return ToolOutcome(
        operation=OperationId(run, seq, call),
        response_hash="b" * 64,
        is_error=is_error,
    )


def terminal(run: RunId = RUN, **changes: Any) -> RunTerminal:
    """Return the end of a run."""
    fields: dict[str, Any] = {"outcome": "completed", "stop_reason": "end_turn"}
    return RunTerminal(run_id=run, **(fields | changes))
