"""The removal of an agent, in an order that a kill at any point leaves repeatable.

Its memory → its id among those whose Skills are still to be cleared → one transaction
that asks again whether a session refers to it and drops the row → its Skills' bindings.
What fails behind the row is tried again at the next start; global Skill packages and
the bindings of other agents are nobody's business here (DEL-06).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, final

import attrs
import msgspec
import trio

from greenroom.storage import AgentReader, Piece, Store

from . import _rows
from ._ports import PieceWriter, StoreReaders

_LOG: Final = logging.getLogger("greenroom.agents")

_PENDING: Final = "agents.pendingCleanups"
_IDS: Final = msgspec.json.Decoder(tuple[str, ...])

T = TypeVar("T")


async def _nothing(_agent_id: str) -> None:
    await trio.lowlevel.checkpoint()


def _nothing_kept(_store: Store, _agent_id: str) -> None:
    pass


@final
@attrs.frozen
class Belongings:
    """What there is of an agent beside its row; whoever keeps it removes it here.

    Each is called with the agent's gate shut and may be called again: what is gone
    already is no error.
    """

    clear_memory: Callable[[str], Awaitable[None]] = _nothing
    """Before anything else; if it raises, the agent stays as it is."""
    retire: Callable[[Store, str], None] = _nothing_kept
    """In the transaction that drops the row, which it undoes by raising."""
    clear_skills: Callable[[str], Awaitable[None]] = _nothing
    """After the row; if it raises, the next start calls it again."""


@final
@attrs.define(eq=False)
class Removal:
    """Removes agents; the caller holds the gate."""

    _writer: PieceWriter
    _readers: StoreReaders
    _now: Callable[[], float]
    belongings: Belongings = attrs.field(factory=Belongings, init=False)

    async def remove(self, agent_id: str) -> None:
        """Remove the agent with this very id.

        Raises:
            AgentNotFoundError: there is none.
            AgentRefusedError: ``agent_protected``, ``agent_in_use``.
        """
        is_native = await self._readers.read(
            lambda reader: _rows.removable(reader, agent_id).kind == "native"
        )
        retire: Callable[[Store, str], None] = _nothing_kept
        if is_native:
            await self.belongings.clear_memory(agent_id)
            await self._write(lambda store: _put(store, agent_id, self._now()))
            retire = self.belongings.retire
        try:
            await self._write(lambda store: _rows.remove(store, agent_id, retire))
        finally:
            if is_native:
                await self._finish(agent_id)

    async def finish_pending(self) -> None:
        """Clear what earlier removals left; a failure is a warning."""
        for agent_id in await self._readers.read(_pending):
            await self._finish(agent_id)

    async def _finish(self, agent_id: str) -> None:
        # The id is also there for an agent that was not removed after all: its
        # bindings are its own.
        try:
            is_there = await self._readers.read(
                lambda reader: reader.agent(agent_id) is not None
            )
            if not is_there:
                await self.belongings.clear_skills(agent_id)
            await self._write(lambda store: _take(store, agent_id, self._now()))
        except Exception as exc:
            _LOG.warning(
                "what agent %s had of Skills was not cleared, the next start tries"
                " again: %s",
                agent_id,
                exc,
            )

    async def _write(self, change: Callable[[Store], T]) -> T:
        return await self._writer.submit(Piece(change))


def _pending(reader: AgentReader) -> tuple[str, ...]:
    text = reader.app_setting(_PENDING)
    try:
        return () if text is None else _IDS.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return ()


def _put(store: Store, agent_id: str, now: float) -> None:
    waiting = _pending(store)
    if agent_id not in waiting:
        _keep(store, (*waiting, agent_id), now)


def _take(store: Store, agent_id: str, now: float) -> None:
    waiting = _pending(store)
    if agent_id in waiting:
        _keep(store, tuple(each for each in waiting if each != agent_id), now)


def _keep(store: Store, waiting: tuple[str, ...], now: float) -> None:
    text = msgspec.json.encode(waiting).decode() if waiting else None
    store.put_app_setting(_PENDING, text, now=now)
