"""The deletion of a session, in stages that a kill at any point leaves repeatable.

It needs the session's id and nothing else: no agent is decoded, nothing is loaded or
started (DEL-01). The gate is shut and drained first; then a record says which stages
are left; then, in this order (DEL-03): the backends, together → what its tools left →
what it has given away → its children, each in the same way → what was said and waits
in it → permissions → its selection of Skills → its row, and the record with it.

A stage that fails is noted, and the next ones run (DEL-04). What is left then stays in
the record, which outlives the row, for the next start or whoever deletes it again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, final

import attrs
import trio

from greenroom.actors.agents import AgentManager
from greenroom.actors.logs import of_session
from greenroom.actors.sessions import (
    SessionHeldError,
    SessionNotFoundError,
    Sessions,
)
from greenroom.protocol import GreenroomError, SessionId, SessionSettings
from greenroom.storage import (
    Grant,
    Owner,
    Piece,
    Reader,
    SessionRow,
    Store,
    clear_session,
    drop_session,
    note_deletion,
    pending_deletions,
)

from ._ports import Stages

_LOG: Final = logging.getLogger("greenroom.lifecycle")

STAGES: Final = (
    "backends",
    "resources",
    "delegation",
    "children",
    "data",
    "permissions",
    "skills",
    "row",
)

FINISH_SECONDS: Final = 10.0
"""How long a start works on deletions that an earlier engine did not end."""

T = TypeVar("T")


class DeletionError(GreenroomError):
    """Not all of a session could be removed; what could be is gone.

    ``__cause__`` is the first failure, ``failures`` are all of them, by stage.
    """

    code = "deletion_incomplete"
    hint = "delete it again; the next start tries it too"

    def __init__(
        self, session_id: SessionId, failures: Sequence[tuple[str, Exception]]
    ) -> None:
        stage, first = failures[0]
        others = f", and {len(failures) - 1} more" if len(failures) > 1 else ""
        super().__init__(
            f"session {session_id[:80]!r} was not deleted whole;"
            f" {stage}: {first}{others}"
        )
        self.failures = tuple(failures)


@attrs.define(eq=False)
class _Doomed:
    """A session while it is deleted."""

    id: SessionId
    ancestors: tuple[SessionId, ...]
    row: SessionRow | None
    grant: Grant | None = None
    head: int = 0
    failures: list[tuple[str, Exception]] = attrs.field(
        factory=list[tuple[str, Exception]]
    )


@final
@attrs.define(eq=False)
class Deletion:
    """Deletes sessions."""

    _sessions: Sessions
    _agents: AgentManager
    stages: Stages = attrs.field(factory=Stages)

    async def delete(
        self, session_id: SessionId, ancestors: tuple[SessionId, ...] = ()
    ) -> None:
        """Delete a session and its children; who asks meanwhile shares the result.

        A turn that goes on is ended; other operations are waited for, 30 s at most.
        Cancelling it leaves what is left to be deleted again. *ancestors* are those
        whose deletion this is a part of.

        Raises:
            SessionNotFoundError: there is none, and nothing is left of one.
            SessionHeldError: another engine owns it; nothing was done.
            StillUsedError: an operation did not end; the session is as it was.
            DeletionError: something is left; see there.
        """
        gates = self._sessions.gates
        await gates.shared(session_id, lambda: self._delete(session_id, ancestors))

    async def finish_pending(self) -> None:
        """Go on with deletions that were cut off; a failure is a warning."""
        waiting = await self._sessions.world.readers.read(pending_deletions)
        with trio.move_on_after(FINISH_SECONDS):
            for session_id in waiting:
                try:
                    await self.delete(session_id)
                except GreenroomError as exc:
                    _LOG.warning(
                        "session %s is still to be deleted: %s",
                        session_id,
                        exc,
                        extra=of_session(session_id),
                    )

    async def _delete(
        self, session_id: SessionId, ancestors: tuple[SessionId, ...]
    ) -> None:
        async with self._sessions.gates.deletion(session_id):
            doomed = await self._found(session_id, ancestors)
            try:
                await self._write(
                    lambda store, now: _note(store, session_id, STAGES, now)
                )
                await self._run_stages(doomed)
            finally:
                if doomed.grant is not None:
                    await self._sessions.release(doomed.grant)
        if doomed.failures:
            raise DeletionError(session_id, doomed.failures) from doomed.failures[0][1]

    async def _found(
        self, session_id: SessionId, ancestors: tuple[SessionId, ...]
    ) -> _Doomed:
        world = self._sessions.world
        row, owner, is_pending = await world.readers.read(
            lambda reader: _look(reader, session_id)
        )
        if row is None and not is_pending:
            raise SessionNotFoundError(session_id)
        doomed = _Doomed(session_id, ancestors, row)
        is_ours = owner is not None and owner.member_id == world.member.id
        if row is not None and not is_ours:
            # Before anything is done: whoever works with it keeps it.
            doomed.grant = await self._sessions.acquire(session_id)
            doomed.head = doomed.grant.head
        return doomed

    async def _run_stages(self, doomed: _Doomed) -> None:
        name, stages = doomed.id, self.stages
        await self._try(doomed, "backends", lambda: self._forget(name))
        if doomed.row is not None and doomed.grant is None:
            try:
                doomed.grant = await self._sessions.acquire(name)
            except SessionHeldError:
                # Somebody took it in the moment in which it was free.
                await self._write(lambda store, now: _note(store, name, (), now))
                raise
            doomed.head = doomed.grant.head
        await self._try(doomed, "interactions", lambda: self._end_asked(doomed))
        await self._try(doomed, "resources", lambda: stages.resources(name))
        await self._try(doomed, "delegation", lambda: stages.delegation.interrupt(name))
        await self._try(doomed, "children", lambda: self._delete_children(doomed))
        await self._try(doomed, "data", lambda: self._clear(doomed))
        await self._try(doomed, "permissions", lambda: stages.permissions(name))
        await self._try(doomed, "skills", lambda: self._deselect(name))
        await self._try(doomed, "row", lambda: self._drop(doomed))

    async def _try(
        self, doomed: _Doomed, stage: str, work: Callable[[], Awaitable[Any]]
    ) -> None:
        try:
            await work()
        except Exception as exc:
            whose = of_session(doomed.id)
            _LOG.warning(
                "deleting session %s, %s: %s", doomed.id, stage, exc, extra=whose
            )
            doomed.failures.append((stage, exc))

    #### Stages

    async def _forget(self, session_id: SessionId) -> None:
        # All to the end, whatever one of them does (DEL-04).
        failures: list[Exception] = []

        async def forget(kind: str) -> None:
            try:
                await self._agents.backends[kind].forget(session_id)
            except Exception as exc:
                failures.append(exc)

        async with trio.open_nursery() as nursery:
            for kind in self._agents.backends:
                nursery.start_soon(forget, kind)
        if failures:
            raise failures[0]

    async def _end_asked(self, doomed: _Doomed) -> None:
        if doomed.row is not None and doomed.grant is not None:
            doomed.head = await self._sessions.end_interactions(
                doomed.grant, doomed.head
            )

    async def _delete_children(self, doomed: _Doomed) -> None:
        line = (*doomed.ancestors, doomed.id)
        failures: list[Exception] = []
        for child in await self.stages.delegation.children(doomed.id):
            if child in line:
                continue
            try:
                await self.delete(child, line)
            except SessionNotFoundError:
                continue
            except Exception as exc:
                failures.append(exc)
        if failures:
            raise failures[0]

    async def _clear(self, doomed: _Doomed) -> None:
        row, grant = doomed.row, doomed.grant
        if row is None or grant is None:
            return
        revision, head = self._sessions.world.ids.uuid(), doomed.head
        settings: SessionSettings = row.settings
        doomed.head = await self._write(
            lambda store, now: clear_session(
                store, grant, head, settings, revision, now
            )
        )

    async def _deselect(self, session_id: SessionId) -> None:
        await self._write(lambda store, _: store.put_skill_selection(session_id, ()))

    async def _drop(self, doomed: _Doomed) -> None:
        name, grant, head = doomed.id, doomed.grant, doomed.head
        left = [stage for stage, _ in doomed.failures]
        if grant is None:
            await self._write(lambda store, now: _note(store, name, left, now))
            return
        await self._write(
            lambda store, now: drop_session(store, grant, head, left, now)
        )
        doomed.grant = None
        self._sessions.end_hub(name)

    async def _write(self, change: Callable[[Store, float], T]) -> T:
        world = self._sessions.world
        now = world.clock.now()
        return await world.writer.submit(Piece(lambda store: change(store, now)))


def _note(store: Store, session_id: SessionId, left: Sequence[str], now: float) -> None:
    note_deletion(store, session_id, left, now)


def _look(
    reader: Reader, session_id: SessionId
) -> tuple[SessionRow | None, Owner | None, bool]:
    return (
        reader.session(session_id),
        reader.locate(session_id),
        session_id in pending_deletions(reader),
    )
