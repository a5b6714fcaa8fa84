"""What comes between an accepted input and the run of its turn, in one order (SES-19).

Attachments were looked at when the input was let in. Then, in the task of the run, so
that a cancel ends it wherever it is:

resources → history → compaction intent → user's message, behind the indicator of a
compaction → compaction → hooks → memory → view → assistant's message, without the plan
of the turn before → the run.

A step that fails is the last one. Before the user's message nothing is on the tape,
and the input is given back; behind it the message leaves with its turn (PIN-11). If
the store does not take a message, the input waits for whoever loads the session next.
A cancel keeps what was said, and ends the turn as aborted. Nothing is taken out of the
transcript to try a turn again: one that failed has left it already.
"""

from __future__ import annotations

from typing import Any, final

import attrs

from greenroom.actors.backend import (
    ActiveRun,
    RunNotStartedError,
    RunPorts,
    excess_of,
    request_of,
    with_resources,
)
from greenroom.actors.kernel import Context, Ref
from greenroom.protocol import (
    ContributionMade,
    Fact,
    SourceType,
    StorageError,
    told,
)
from greenroom.protocol.context import Trigger
from greenroom.storage import contribution_fact, indicator_fact

from ._compaction import SessionCompaction, compaction_for
from ._opening import BeginReply, SayInput, sent, tell_submitted
from ._session import Session
from ._turn import Opened, Turn


@final
@attrs.define(eq=False)
class Preparation:
    """Prepares a turn, and hands it to its first run."""

    session: Session
    turn: Turn
    active: ActiveRun
    ports: RunPorts
    owner: Ref[Any]
    """The session's actor, which writes the messages."""

    async def behave(self, ctx: Context[Any]) -> None:
        """Prepare the turn, then do its run: what the run's actor does.

        Raises:
            StorageError: a message was not written; the turn never began.
            RunNotStartedError: another step failed; the turn never began.
        """
        try:
            await self._prepare(ctx)
        except (StorageError, RunNotStartedError):
            raise
        except Exception as exc:
            run_id = self.active.plan.run_id
            raise RunNotStartedError(f"run {run_id} can't start: {exc}") from exc
        run = self.session.ports.backend.turn(self.active, self.ports)
        await run(ctx)

    async def _prepare(self, ctx: Context[Any]) -> None:
        self.ports = await with_resources(self.active, self.ports)
        await self._complete_history()
        trigger = await self._compaction_intent()
        await self._say(trigger, ctx.ids.uuid())
        await self._compact(trigger)
        self._tell_hooks()
        made = await self._remember()
        self._make_view(made)
        await self._begin_reply()
        self.active.is_prepared = True

    async def _complete_history(self) -> None:
        self.ports.preparing("history")
        history = self.session.history
        await history.complete()
        self.active.plan = attrs.evolve(self.active.plan, account=history.account)

    async def _compaction_intent(self) -> Trigger | None:
        # Of a request that may not be sent, because a limit is used up, nothing is made
        # smaller: the question about it comes first.
        self.ports.preparing("compaction intent")
        self._begin_view()
        plan, views, compaction = self.active.plan, self.ports.views, self._compaction
        if compaction is None or views is None:
            return None
        if excess_of(plan, plan.message.metadata, plan.message.blocks) is not None:
            return None
        numbers = views.preflight(request_of(plan, self.ports.tools))
        return await compaction.due(plan.settings, numbers, resumes=False)

    async def _say(self, trigger: Trigger | None, revision: str) -> None:
        self.ports.preparing("user's message")
        indicator = () if trigger is None else (self._indicator(revision),)
        await self.owner.ask(SayInput(self.active.plan.run_id, indicator))

    def _indicator(self, revision: str) -> Fact:
        first = self.turn.claimed.messages[0]
        source = SourceType.RUNTIME_EVENT
        return indicator_fact(first.order_seq, revision=revision, source=source)

    async def _compact(self, trigger: Trigger | None) -> None:
        compaction = self._compaction
        if trigger is None or compaction is None:
            return
        self.ports.preparing("compaction")
        await compaction.compact(trigger, self.active.plan.settings, active=self.active)
        self._begin_view()

    def _tell_hooks(self) -> None:
        self.ports.preparing("hooks")
        tell_submitted(self.session, self.turn)

    async def _remember(self) -> ContributionMade | None:
        self.ports.preparing("memory")
        contribute = self.ports.contribute
        made = None if contribute is None else await contribute(self.active.plan)
        if made is not None:
            self.ports.record.append_soon([contribution_fact(made)])
        return made

    def _make_view(self, made: ContributionMade | None) -> None:
        self.ports.preparing("view")
        if made is not None:
            self.active.plan.view.prefix_user(told(made))

    async def _begin_reply(self) -> None:
        self.ports.preparing("assistant's message")
        await self.owner.ask(BeginReply(self.active.plan.run_id))

    def _begin_view(self) -> None:
        # The view of all that was said, from where it begins now.
        plan, view = self.active.plan, self.active.plan.view
        said = []
        if self.turn.opened is Opened.NOTHING:
            said = [sent(message) for message in self.turn.claimed.messages]
        view.begin_from(self.session.history.view(plan.settings, said), plan.message)

    @property
    def _compaction(self) -> SessionCompaction | None:
        return compaction_for(self.session, self.active.plan.settings)
