"""A session's history compacted: for its runs, and because the user says so.

A run compacts before its first request, or when one is too large; it waits for that,
and a cancel of the run is a cancel of the compaction. What the user asks for is a task
of its own beside a session at rest: input that comes meanwhile is taken in as always,
and has its turn afterwards. Either way the boundary is moved by one append, and the
history in memory follows what is on the tape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, final

import attrs
import msgspec
import trio

from greenroom.actors.backend import (
    ActiveRun,
    RunPorts,
    SideRequests,
    known_cost,
)
from greenroom.actors.context import (
    SUMMARY_SECONDS,
    BoundaryMovedError,
    Compacted,
    CompactionSetup,
    CompactionWork,
    Compactor,
    ModelCall,
    RunRecovery,
    read_boundary,
)
from greenroom.actors.kernel import (
    CancelCause,
    Context,
    Exited,
    Failed,
    ReplySlot,
    Request,
)
from greenroom.actors.providers import ACP_PROVIDER
from greenroom.protocol import (
    Fact,
    MessageRecord,
    SessionSettings,
    Spent,
    ViewBuilder,
    spent_on,
)
from greenroom.protocol.context import (
    MAX_FOCUS,
    SUMMARY_RESET,
    Boundary,
    ContextPressure,
    Numbers,
    Reconstruction,
    Trigger,
    output_cap,
    reconstruction_fact,
    trigger_tokens,
)
from greenroom.storage import Reader

from ._messages import TurnFailedError, TurnRefusedError
from ._session import Compacting, Session

_STATUSES: Final[Mapping[str, Literal["completed", "error", "aborted"]]] = {
    "completed": "completed",
    "failed": "error",
    "aborted": "aborted",
}


@attrs.frozen
class CompactSession(Request[Compacted]):
    """Hide the whole history behind a summary."""

    focus: str = ""


@attrs.frozen
class UndoCompaction(Request[bool]):
    """Show again what the newest compaction has hidden."""


@final
@attrs.frozen
class SessionCompaction:
    """Compacts one session."""

    session: Session
    setup: CompactionSetup

    async def compact(
        self,
        trigger: Trigger,
        settings: SessionSettings,
        focus: str = "",
        active: ActiveRun | None = None,
    ) -> Compacted:
        """Compact the history, and show from the new boundary on.

        What it uses is the turn's of *active*; without one the session's alone.

        Raises:
            StorageError: it can't be read, or the anchor was not written.
        """
        session = self.session
        work = await self._work(trigger, settings, focus)
        compactor = self._compactor(active)
        session.hub.waiting("compaction", trio.current_time() + SUMMARY_SECONDS)
        try:
            done = await compactor.compact(work)
        finally:
            session.hub.waiting(None)
        if done.state is not None:
            await self._follow_tape()
            self.setup.applied(session.id, settings)
        return done

    async def _work(
        self, trigger: Trigger, settings: SessionSettings, focus: str
    ) -> CompactionWork:
        session = self.session
        policy = await self.setup.policy(settings)
        window = self._window(settings)
        return CompactionWork(
            trigger=trigger,
            settings=settings,
            records=_finished(session),
            boundary=session.history.boundary,
            pairs_kept=policy.pairs_kept,
            input_budget=0
            if window is None
            else window - output_cap(settings.max_output_tokens, window),
            models=policy.models,
            pinned=session.history.pinned,
            focus=focus,
        )

    def _compactor(self, active: ActiveRun | None) -> Compactor:
        requests = self._requests(active)

        def bill(call: ModelCall) -> Spent:
            requests.end(
                _STATUSES[call.status],
                usage=call.usage,
                stop_reason=call.stop_reason,
                error=call.error,
            )
            return self._bill(call, active)

        return Compactor(
            self.setup.strategy,
            self.session.ports.record,
            self._expect,
            self.setup.ids.uuid,
            self.setup.now,
            bill,
            None if active is None else active.plan.message.id,
            requests.begin,
        )

    def _requests(self, active: ActiveRun | None) -> SideRequests:
        tell, new_id = self.session.ports.tell_hooks, self.setup.ids.uuid
        scope = self.session.id
        if active is None:
            return SideRequests(tell, new_id, "compaction", scope)
        plan = active.plan
        whose = scope, plan.run_id, plan.message.id
        return SideRequests(tell, new_id, "compaction", *whose)

    def _bill(self, call: ModelCall, active: ActiveRun | None) -> Spent:
        usage = call.usage
        if usage is None and call.status != "completed":
            # What never answered is taken to have used nothing, as in a turn.
            return Spent()
        cost = None
        if usage is not None:
            price = self.session.ports.cost
            cost = known_cost(lambda: price(call.provider, call.model, usage))
        spent = spent_on(None if usage is None else usage.total, cost)
        if active is None:
            self.session.history.bill(spent)
        else:
            active.bill(usage, cost)
        return spent

    async def undo(self) -> bool:
        """Move the boundary back to where it was before the newest compaction.

        Returns whether there was one. The tape has both; doing it again goes on
        backwards.

        Raises:
            BoundaryMovedError: it was moved meanwhile.
        """
        now = self.session.history.boundary
        if now is None or now.cursor <= 1:
            return False
        earlier = await self._before(now)
        fact = _restoring(earlier, self.setup.ids.uuid())
        await self.session.ports.record.append(
            [fact], before=lambda store: self._expect(store, now.entry)
        )
        await self._follow_tape()
        return True

    async def _before(self, now: Boundary) -> Boundary | None:
        # The newest one that shows more; of one that restored an earlier one, one that
        # is before that.
        scope, restores = self.session.id, now.state.restores
        entry = now.entry if restores is None else restores

        def read(reader: Reader) -> Boundary | None:
            found = read_boundary(reader, scope, before=entry)
            while found is not None and found.cursor >= now.cursor:
                found = read_boundary(reader, scope, before=found.entry)
            return found

        return await self.session.ports.record.read(read)

    def _expect(self, reader: Reader, entry: int | None) -> None:
        found = read_boundary(reader, self.session.id)
        if (found and found.entry) != entry:
            raise BoundaryMovedError

    async def _follow_tape(self) -> None:
        scope = self.session.id
        boundary = await self.session.ports.record.read(
            lambda reader: read_boundary(reader, scope)
        )
        if boundary is not None:
            self.session.history.move_boundary(boundary)

    def _window(self, settings: SessionSettings) -> int | None:
        views = self.session.ports.views
        return None if views is None else views.windows.find(settings).in_force

    #### For a run

    def for_run(self, active: ActiveRun, ports: RunPorts) -> RunPorts:
        """Return *ports* with what makes the requests of the run smaller."""
        views, plan = ports.views, active.plan
        if views is None:
            return ports
        recovery = RunRecovery(
            plan.settings,
            plan.view,
            views,
            compact=lambda why: self.compact(why, plan.settings, active=active),
            base=lambda: self._base(plan.settings),
            blocks=lambda: active.draft.blocks,
            due=lambda numbers: self.due(plan.settings, numbers, resumes=True),
            noticed=self._noticed,
        )
        return attrs.evolve(ports, recovery=recovery)

    def _base(self, settings: SessionSettings) -> ViewBuilder:
        return self.session.history.view(settings)

    async def due(
        self, settings: SessionSettings, numbers: Numbers, *, resumes: bool
    ) -> Trigger | None:
        """Return why the history is to be compacted before a request of *numbers*.

        ``None``: it is not. *resumes*: it is the first of a run that goes on with a
        turn (CTX-25).
        """
        preflight = numbers.preflight
        if self.session.history.pressed or preflight.pressure:
            return "context_pressure"
        if preflight.context is None:
            return None
        policy = await self.setup.policy(settings)
        bound = trigger_tokens(
            preflight.context, preflight.requested, preflight.tools, policy.threshold
        )
        if not policy.enabled or preflight.input <= bound:
            return None
        return "resume" if resumes else "auto"

    def _noticed(self, pressure: ContextPressure) -> None:
        self.session.history.pressed = True


#### For the user


def start_compaction(
    session: Session,
    request: CompactSession,
    reply: ReplySlot[Compacted],
    ctx: Context[Any],
) -> None:
    """Begin what the user asked for, beside a session at rest.

    Raises:
        TurnRefusedError: it is not at rest, or it can't be compacted.
    """
    compaction = _compaction_of(session)
    if not session.is_free:
        raise TurnRefusedError(
            "session_busy", "wait for the end of the turn, or cancel it, to compact"
        )

    async def behave(_: Context[Any]) -> None:
        await session.history.complete()
        focus = request.focus[:MAX_FOCUS]
        running.done = await compaction.compact("manual", session.settings, focus)

    ref = ctx.spawn(f"compaction-{compaction.setup.ids.uuid()}", behave, watch=True)
    running = session.compacting = Compacting(ref, reply)


def stop_compaction(session: Session, cause: CancelCause) -> None:
    """End what the user asked for; nothing of it is written then."""
    if session.compacting is not None:
        session.compacting.ref.cancel(cause)


def compaction_ended(session: Session, exited: Exited) -> bool:
    """Tell whoever asked for the compaction that it has ended; whether it has."""
    running = session.compacting
    if running is None or running.ref is not exited.ref:
        return False
    session.compacting = None
    if running.done is not None:
        running.reply.set_value(running.done)
        return True
    failure = TurnFailedError("the compaction was stopped; nothing was changed")
    if isinstance(exited.reason, Failed):
        failure = TurnFailedError(f"nothing was compacted: {exited.reason.error}")
        failure.__cause__ = exited.reason.error
    running.reply.set_error(failure)
    return True


async def undo_compaction(session: Session) -> bool:
    """Show what the newest compaction has hidden; whether there was one.

    Raises:
        TurnRefusedError: the session is not at rest.
        BoundaryMovedError: the boundary was moved meanwhile.
    """
    compaction = _compaction_of(session)
    if not session.is_free:
        raise TurnRefusedError(
            "session_busy", "wait for the end of the turn, or cancel it, to undo"
        )
    return await compaction.undo()


def _compaction_of(session: Session) -> SessionCompaction:
    setup = session.ports.compaction
    if setup is None:
        raise TurnRefusedError("session_busy", "this session can't be compacted")
    return SessionCompaction(session, setup)


def with_compaction(session: Session, active: ActiveRun, ports: RunPorts) -> RunPorts:
    """Return *ports* of a run that makes its requests smaller where they have to be."""
    compaction = compaction_for(session, active.plan.settings)
    if compaction is None or ports.recovery is not None:
        return ports
    return compaction.for_run(active, ports)


def compaction_for(
    session: Session, settings: SessionSettings
) -> SessionCompaction | None:
    """Return what compacts *session* for its turns; ``None``: nothing does."""
    setup = session.ports.compaction
    if setup is None or settings.provider == ACP_PROVIDER:
        return None
    return SessionCompaction(session, setup)


def _finished(session: Session) -> list[MessageRecord]:
    records = list(session.history.records)
    if session.turn is not None:
        # What the turn is about is no history yet.
        while records and records[-1].role == "user":
            records.pop()
    return records


def _restoring(earlier: Boundary | None, revision: str) -> Fact:
    if earlier is None or earlier.cursor <= 1:
        state = Reconstruction(reason="compaction_undone", restores=0)
        return reconstruction_fact(SUMMARY_RESET, state, revision=revision)
    state = msgspec.structs.replace(earlier.state, restores=earlier.entry)
    return reconstruction_fact(earlier.name, state, revision=revision)
