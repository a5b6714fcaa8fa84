"""What a run needs from the world, as narrow ports (RUN-26).

A run is made from these and nothing else; a test makes them from fakes. Nothing here
reaches back to an engine, a client or a registry.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import attrs

from greenroom.actors.providers import Provider, RateGate
from greenroom.actors.tools import ToolContext, ToolSet
from greenroom.protocol import (
    Account,
    AttemptTrace,
    Block,
    Change,
    ChatMessage,
    ContributionMade,
    Fact,
    ItemId,
    JournalRecord,
    MessageId,
    MessageRecord,
    ModelRequest,
    Notice,
    PlanEntry,
    ProviderFailure,
    RecoveryLatch,
    Review,
    ReviewedCall,
    RunId,
    SessionId,
    SessionSettings,
    SkillContext,
    ToolDefinition,
    Usage,
    ViewBuilder,
    WaitReason,
)
from greenroom.protocol.context import (
    ContextPressure,
    Numbers,
    RecoveryError,
    RequestIdentity,
)


class Record(Protocol):
    """The session's tape and journal, as its one owner writes them.

    Every method returns when the data is on disk and is not abandoned half-way by a
    cancellation.
    """

    async def append(self, facts: Sequence[Fact]) -> None:
        """Write facts, then tell watchers."""
        ...

    def append_soon(self, facts: Sequence[Fact]) -> None:
        """Write facts with the next group; a failure is reported, not raised."""
        ...

    async def commit(self, record: JournalRecord) -> bool:
        """Commit a strict fact; whether it was created (JRN-07).

        Raises:
            JournalError: it is not on disk.
        """
        ...

    def cache_soon(self, message_id: MessageId, blocks: Sequence[Block]) -> None:
        """Keep blocks of a message in progress, before anything written later."""
        ...

    async def update_plan(self, entries: tuple[PlanEntry, ...]) -> int:
        """Replace the plan and return its revision."""
        ...

    async def end_plan(self) -> None:
        """Say of the plan, if there is one, that its turn ran into a limit."""
        ...


class Watchers(Protocol):
    """Those who look on; telling them never waits."""

    def change(self, run_id: RunId, message_id: MessageId, change: Change) -> None:
        """An item of the message changed."""
        ...

    def output(
        self,
        run_id: RunId,
        message_id: MessageId,
        item_id: ItemId,
        offset: int,
        text: str,
    ) -> None:
        """A running tool printed something."""
        ...

    def waiting(self, reason: WaitReason | None, until: float | None = None) -> None:
        """The run waits, until a time in the loop's clock; ``None``: it works."""
        ...


class Reviewer(Protocol):
    """Who looks at calls in ``auto_approve`` instead of the user (TOL-11)."""

    async def review(
        self, call: ReviewedCall, conversation: Sequence[ChatMessage]
    ) -> Review:
        """Return a decision; whoever raises, is late or says none asks the user."""
        ...


class ContextBudget(Protocol):
    """How much a request may hold."""

    def fits(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition]
    ) -> bool:
        """Whether a request of these leaves the model room to answer."""
        ...


class Views(Protocol):
    """Says what each request carries, on the tape, before it is sent (CTX-03)."""

    def preflight(self, request: ModelRequest) -> Numbers:
        """Return the numbers of *request* as it would be sent now (CTX-07)."""
        ...

    async def assemble(
        self, request: ModelRequest, view: ViewBuilder, identity: RequestIdentity
    ) -> ModelRequest:
        """Return *request*, made of *view*, as it is to be sent.

        Raises:
            GreenroomError: it must not be sent; nothing was.
        """
        ...

    def settled(
        self,
        request: ModelRequest,
        view: ViewBuilder,
        usage: Usage | None,
        fault: ProviderFailure | None,
    ) -> None:
        """Learn from an attempt at *request* that was not aborted."""
        ...


@attrs.frozen
class Refreshed:
    """What a refresh brings: the tools, and the instructions, from now on."""

    tools: ToolSet
    instructions: str
    readable: tuple[Path, ...] | None = None
    """Folders outside the workspace that file tools may read; ``None``: as before."""
    skills: tuple[SkillContext, ...] = ()
    """Those that the instructions hold."""


class Prepared(Protocol):
    """What a run begins with; a snapshot that no change from outside reaches."""

    def at(self, blocks: Sequence[Block]) -> Refreshed:
        """Return what is in force when the message has come to *blocks*.

        Equal blocks give equal results, byte for byte.
        """
        ...


class Prepare(Protocol):
    """Gathers what a run begins with: Skills, tools, instructions (RUN-07)."""

    async def __call__(self, plan: RunPlan, tools: ToolSet) -> Prepared:
        """Return the snapshot for *plan*, whose tools are *tools* so far.

        Bounded, and it may be cancelled; raising keeps the run from beginning.
        """
        ...


class Contribute(Protocol):
    """Asks the agent's memory for what a turn should know (SKL-07)."""

    async def __call__(self, plan: RunPlan) -> ContributionMade | None:
        """Return what became of it; ``None``: the agent remembers nothing.

        Within `CONTRIBUTION_SECONDS`, and it never raises. Equal for all runs of a
        turn. May be cancelled.
        """
        ...


class Refresh(Protocol):
    """Looks, between a settled batch and the next request, what changed (TOL-23)."""

    async def __call__(self) -> Refreshed | None:
        """Return what is in force now; ``None`` or an exception: what was."""
        ...


class Recovery(Protocol):
    """What can be done about a request that is too large (RUN-05, TRY-22).

    Every method may be cancelled, and then has changed nothing that is durable.
    """

    async def begin(self, request: ModelRequest) -> None:
        """Make the view smaller before *request*, if it has to.

        It is the first one of a run that goes on with a turn.
        """
        ...

    async def relieve(
        self, request: ModelRequest, latch: RecoveryLatch
    ) -> ModelRequest | None:
        """Return a smaller payload in place of one that is about to be sent.

        ``None``: it fits as far as one can tell, or nothing can be made smaller.
        *latch* is what it would be counted as.
        """
        ...

    async def recover(
        self, request: ModelRequest, failure: ProviderFailure, latch: RecoveryLatch
    ) -> ModelRequest | RecoveryError:
        """Return a smaller payload for the same round, or why there is none.

        *request* was refused with *failure* before any output. The one it returns is
        sent as the next request; the same again counts as none.
        """
        ...

    def noticed(self, pressure: ContextPressure) -> None:
        """Know that a request was too large, and nobody said so (CTX-19)."""
        ...


def _nothing_waits() -> bool:
    return False


def _no_price(_: Usage) -> float | None:
    return None


def _unwatched(_: str | None) -> None:
    pass


def _always_current(_: int) -> bool:
    return True


def _no_hooks(_: Notice) -> None:
    pass


def _keep_no_trace(_: Callable[[], AttemptTrace]) -> None:
    pass


@attrs.frozen
class RunPorts:
    """Everything outside a run."""

    provider: Provider
    tools: ToolSet
    """A snapshot; only `refresh` gives the run another."""
    record: Record
    watchers: Watchers
    steer_waiting: Callable[[], bool] = _nothing_waits
    """Whether the user steers: looked at where a batch has settled (RUN-19)."""
    cost: Callable[[Usage], float | None] = _no_price
    """What usage of the session's model costs, in US dollars; ``None``: not known."""
    reviewer: Reviewer | None = None
    """``None``: the session's own model is asked."""
    context_budget: ContextBudget | None = None
    """``None``: everything fits; the provider says when it does not."""
    views: Views | None = None
    """``None``: requests go out as they are, and nothing is said of them."""
    refresh: Refresh | None = None
    """``None``: what `prepare` brought, as far as the message has come."""
    prepare: Prepare | None = None
    """``None``: the tools and the settings are all there is."""
    contribute: Contribute | None = None
    gate: RateGate = attrs.field(factory=RateGate)
    """The provider's; every physical attempt enters it (TRY-20)."""
    authority: Callable[[int], bool] = _always_current
    """Whether the run may send the request of that number now: it is the session's
    current run, and the view that belongs to the number is durable (TRY-21)."""
    recovery: Recovery | None = None
    """``None``: a request that is too large ends the run."""
    trace_soon: Callable[[Callable[[], AttemptTrace]], None] = _keep_no_trace
    """Makes and keeps a trace later, maybe in another thread; never raises."""
    last_request: Callable[[MessageId], Awaitable[int]] | None = None
    """Reads how far the requests of a message got, from durable evidence (RUN-04).
    ``None``: its metadata is all there is."""
    preparing: Callable[[str | None], None] = _unwatched
    """Told which step comes next before the model is asked; ``None``: it is asked now.
    Never waits (SES-20)."""
    tell_hooks: Callable[[Notice], None] = _no_hooks
    """Tells hooks and the observer what happened, after it is on disk; never waits,
    never raises (SKL-10)."""


@attrs.frozen
class RunPlan:
    """What one run is to do; fixed when it starts."""

    run_id: RunId
    session_id: SessionId
    settings: SessionSettings
    """A snapshot: a change during the run is for the next one (SES-14)."""
    message: MessageRecord
    """The assistant message, pending, with all its blocks so far."""
    view: ViewBuilder
    """What requests begin with: instructions and the messages before that one. The
    run's own, to add its rounds to."""
    context: ToolContext
    account: Account = attrs.field(factory=Account)
    """What the turns before this one used, and what the user added."""

    @property
    def resumes(self) -> bool:
        """Whether an earlier run worked on the message."""
        return self.message.metadata.run_id is not None

    @property
    def max_rounds(self) -> int | None:
        """The round limit: that of the message's first run (RUN-04)."""
        metadata = self.message.metadata
        return (
            metadata.max_provider_rounds if self.resumes else self.settings.max_rounds
        )
