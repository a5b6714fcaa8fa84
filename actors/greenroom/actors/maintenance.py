"""Maintenance: the database is out of use for a while, and then in use again (PER-12).

The order: nobody gets a session any more, what agents remember is fenced, sessions come
to rest and are unloaded, reads are held back; then the writer, behind all that was
accepted before, checkpoints and closes the database, does the work, and opens it again.
What is asked of the engine meanwhile waits, or is refused as *being maintained*.

Until the database is closed nothing has happened, and who is in the way is a refusal.
From there on a failure ends the engine: nobody knows what state the database is in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar, final

import attrs
import trio

from greenroom.actors.bindings import Bindings
from greenroom.actors.kernel import CancelCause, Clock, SupervisorHandle
from greenroom.actors.memory import Ingestion
from greenroom.actors.readers import Readers
from greenroom.actors.sessions import Loaded, PieceWriter, Sessions, StoreReaders
from greenroom.actors.writer import RenewalRefusedError, Writer
from greenroom.protocol import GreenroomError
from greenroom.storage import Member, Piece, SqliteStore, Store, open_store

REST_SECONDS: Final = 30.0
"""How long maintenance waits for turns that go on."""

UNLOAD_SECONDS: Final = 5.0
"""How long sessions that are at rest may take to unload."""

T = TypeVar("T")


class MaintenanceError(GreenroomError):
    """The database is being maintained; nothing was done."""

    code = "maintenance"
    hint = "try again when the maintenance is over"

    def __init__(self) -> None:
        super().__init__("the database is being maintained")


class MaintenanceRefusedError(GreenroomError):
    """The database can't be maintained now; nothing was done, and all goes on."""

    code = "maintenance_refused"
    hint = "end what is in the way, or wait for it, and try again"


class MaintenanceFailedError(GreenroomError):
    """Maintenance failed, and has ended the engine."""

    code = "maintenance_failed"
    hint = "run greenroom doctor on the state folder before it is used again"

    def __init__(self, cause: BaseException) -> None:
        name = type(cause).__name__
        super().__init__(f"maintenance failed, the engine has ended: {name}: {cause}")


@final
@attrs.define(eq=False)
class Maintenance:
    """Maintains the database of one engine."""

    _folder: Path
    _member: Member
    _clock: Clock
    _writer: PieceWriter
    _readers: StoreReaders
    _sessions: Sessions
    _ingestion: Ingestion
    _memory: SupervisorHandle
    _bindings: Bindings
    _fail: Callable[[BaseException], None]
    """Ends the engine."""
    _is_on: bool = attrs.field(default=False, init=False)

    async def run(self, work: Callable[[Path], T], seconds: float) -> T:
        """See `Engine.maintain`."""
        writer, readers = self._writer, self._readers
        if not isinstance(writer, Writer) or not isinstance(readers, Readers):
            raise MaintenanceRefusedError(
                "this engine has no database of its own, or uses it without threads"
            )
        if self._is_on:
            raise MaintenanceError
        self._is_on, self._sessions.check_open = True, _refuse
        try:
            await self._check_alone()
            await self._memory.stop_child("ingestion")
            await self._rest(seconds)
            async with readers.suspended():
                result = await self._without_database(writer, work)
        except MaintenanceFailedError:
            raise
        except BaseException:
            self._go_on()
            raise
        self._go_on()
        return result

    def _go_on(self) -> None:
        self._is_on, self._sessions.check_open = False, _let
        if self._memory.child("ingestion") is None:
            self._ingestion.start(self._memory.spawn)

    async def _check_alone(self) -> None:
        def others(store: Store) -> list[str]:
            assert isinstance(store, SqliteStore)
            return store.others(self._member)

        nodes: list[str] = await self._writer.submit(Piece(others))
        if nodes:
            raise MaintenanceRefusedError(
                f"the state folder is used by {', '.join(nodes)}, too"
            )

    #### Sessions

    async def _rest(self, seconds: float) -> None:
        stopped: list[Loaded] = []
        with trio.move_on_after(seconds) as bound:
            for session_id in self._sessions.opening:
                await self._sessions.until_opened(session_id)
            for loaded in self._sessions.all_loaded:
                await _stop_at_rest(loaded)
                stopped.append(loaded)
        if bound.cancelled_caught:
            raise MaintenanceRefusedError(
                f"a turn was still going on after {seconds:g} s"
            )
        with trio.move_on_after(UNLOAD_SECONDS):
            for loaded in stopped:
                await loaded.ref.wait_exited()
        if self._sessions.all_loaded:
            raise MaintenanceRefusedError(
                f"a session was not unloaded within {UNLOAD_SECONDS:g} s"
            )

    #### The database

    async def _without_database(self, writer: Writer, work: Callable[[Path], T]) -> T:
        try:
            result = await writer.renew(lambda: work(self._folder), self._reopen)
        except RenewalRefusedError as exc:
            raise MaintenanceRefusedError(str(exc)) from exc
        except Exception as exc:
            error = MaintenanceFailedError(exc)
            error.__cause__ = exc
            self._fail(error)
            raise error from exc
        # Whoever started meanwhile took this engine for dead.
        self._bindings.restore_soon()
        return result

    def _reopen(self) -> SqliteStore:
        store = open_store(self._folder)
        try:
            store.restore(self._member, now=self._clock.now())
        except BaseException:
            store.close()
            raise
        return store


async def _stop_at_rest(loaded: Loaded) -> None:
    # No step of the loop between being at rest and the stop: nothing begins there. A
    # question stays open, as at the end of an engine.
    session = loaded.session
    while session.works and not loaded.ref.exited:
        if session.compacting is not None:
            await session.compacting.ref.wait_exited()
        elif await loaded.hub.next_told() is None:
            break
    loaded.ref.stop(CancelCause.SHUTDOWN)


def _refuse() -> None:
    raise MaintenanceError


def _let() -> None:
    pass
