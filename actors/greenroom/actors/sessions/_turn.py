"""What a session is made from, and what it holds of the turn it works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum, auto
from typing import Any, Final, Literal, final

import attrs

from greenroom.actors.backend import (
    ActiveRun,
    Contribute,
    Prepare,
    Recovery,
    RunBackend,
    RunPorts,
)
from greenroom.actors.context import CompactionSetup, SessionViews
from greenroom.actors.hooks import no_hooks
from greenroom.actors.kernel import CancelCause, Exited, Ref, Stopped
from greenroom.actors.providers import Provider, RateGate
from greenroom.actors.tools import ToolContext, ToolSet
from greenroom.protocol import (
    Block,
    Fact,
    ItemId,
    MessageRecord,
    Notice,
    Parts,
    PendingInputs,
    RunId,
    SessionId,
    SessionSettings,
    Usage,
    command_of,
    in_revisions,
)

from ._attachments import Attachments, all_can_be_sent
from ._granting import Granting
from ._hub import Hub
from ._record import SessionRecord
from ._turns import unresolved

KEEPS_QUESTION: Final = (
    CancelCause.PARENT,
    CancelCause.SHUTDOWN,
    CancelCause.PENDING_INPUT,
)
"""Causes that end a run but not a question: somebody else may answer it later."""


@attrs.frozen
class AnswerClock:
    """Key of the deadline of an interaction."""

    interaction_id: ItemId


Cost = Callable[[str, str, Usage], float | None]
"""Provider, model and usage to US dollars."""


def no_price(_provider: str, _model: str, _usage: Usage) -> float | None:
    """Return ``None``: no price is known."""
    return None


def _nothing_waits() -> bool:
    return False


def unwatched(_step: str | None) -> None:
    """Watch nothing."""


def unheard(_session_id: SessionId, _settings: SessionSettings) -> None:
    """Tell nobody."""


@attrs.frozen
class SessionPorts:
    """What a session is made from."""

    record: SessionRecord
    backend: RunBackend
    """Does the runs (SES-10)."""
    providers: Mapping[str, Provider]
    tools: Callable[[], ToolSet]
    """Takes the snapshot for a run."""
    context: Callable[[SessionSettings, RunId], ToolContext]
    """Makes what the tools of a run may know."""
    forget: Callable[[], None]
    """Called when the session leaves: nobody finds it any more."""
    steer_waiting: Callable[[], bool] = _nothing_waits
    """Whether newer input of the user waits for this turn to make way."""

    gates: Mapping[str, RateGate] = attrs.field(factory=dict[str, RateGate])
    """By the provider's id; the same for all sessions of an engine (TRY-20)."""
    recovery: Recovery | None = None
    cost: Cost = no_price
    """What usage of a provider's model costs; ``None``: not known."""
    tell_hooks: Callable[[Notice], None] = no_hooks
    prepare: Prepare | None = None
    contribute: Contribute | None = None
    views: SessionViews | None = None
    """``None``: nothing is said of requests, and everything fits."""
    compaction: CompactionSetup | None = None
    """``None``: a history is never compacted."""
    attachments: Attachments = all_can_be_sent
    """Whether what the user attached needs a decision first (PIN-12)."""
    steers_by_cancel: bool = False
    """The backend has no tool batches that it could make way at: a steer cancels its
    prompt, and begins another message (PIN-07)."""
    turn_settled: Callable[[SessionId, SessionSettings], None] = unheard
    """Told when a turn has ended, whatever it came to; never waits (SKL-08)."""
    preparing: Callable[[str | None], None] = unwatched
    """Told which step its preparation is at; ``None``: it is over (SES-20)."""

    def for_run(
        self, settings: SessionSettings, hub: Hub, authority: Callable[[int], bool]
    ) -> RunPorts:
        """Return what a run with *settings* needs; its tools are a snapshot.

        A tool that the settings disable is neither offered nor found (DEL-11).

        *authority* says whether the run may send the request of a number (TRY-21).
        """
        views = self.views and self.views.for_run(settings, self.record)

        def may_send(request_seq: int) -> bool:
            kept = views is None or views.may_send(request_seq)
            return kept and authority(request_seq)

        return RunPorts(
            self.providers[settings.provider],
            self.tools().without(settings.disabled_tools),
            self.record,
            hub,
            self.steer_waiting,
            lambda usage: self.cost(settings.provider, settings.model, usage),
            gate=self.gates.get(settings.provider) or RateGate(),
            authority=may_send,
            views=views,
            context_budget=views if views and views.budgeted else None,
            recovery=self.recovery,
            trace_soon=self.record.trace_soon,
            last_request=self.record.last_request,
            tell_hooks=self.tell_hooks,
            preparing=self.preparing,
            prepare=self.prepare,
            contribute=self.contribute,
        )


class Opened(IntEnum):
    """How much of a turn's beginning is done; see `_preparation`."""

    NOTHING = auto()
    """Its input is claimed, or still a command in the inbox."""
    SAID = auto()
    """The user's messages are on the tape."""
    SUBMITTED = auto()
    """Hooks were told."""
    REPLY = auto()
    """The assistant's message is on the tape: runs can work on it."""


@attrs.frozen
class Claim:
    """The input that a turn was opened for, until its run's end settles it."""

    input_id: str
    kind: Literal["send", "queue", "steer"]
    """``send``: somebody waits for the turn, so its row goes with the assistant's
    message (PIN-11)."""
    messages: tuple[MessageRecord, ...]
    """The user's messages that it is."""
    parts: Parts
    arrived: tuple[Fact, ...] = ()
    """Where it came in, for the append that takes it in."""

    @property
    def commands(self) -> tuple[str, ...]:
        """Every command that it takes in."""
        return tuple(dict.fromkeys([self.input_id, *map(command_of, self.messages)]))

    def is_straight(self, inputs: PendingInputs) -> bool:
        """Whether it is none of the rows: its command is all there is of it."""
        return all(row.id != self.input_id for row in inputs.rows)


@attrs.frozen
class Due:
    """A claim whose run has ended."""

    claim: Claim
    reply: MessageRecord
    """The assistant's message."""
    failed: bool = False
    """The turn ended in an error, or never began."""
    undone: bool = False
    """Its run never began: nothing is to be left of the turn."""
    opened: Opened = Opened.REPLY
    """What there is of it."""
    unwritten: bool = False
    """Undone because the store did not take its messages: the input waits as before."""
    failure: Exception | None = None
    """Told to whoever waits, once the claim is settled."""

    @property
    def written(self) -> list[MessageRecord]:
        """The messages of the turn that are on the tape."""
        said = self.claim.messages if self.opened > Opened.NOTHING else ()
        is_there = self.opened is Opened.REPLY
        return [*said, self.reply] if is_there else [*said]


@final
@attrs.define(eq=False)
class Turn:
    """One accepted input while it is worked on."""

    message: MessageRecord
    command_id: str
    """What began it, which is the id of the user's message."""
    active: ActiveRun | None = None
    ref: Ref[Any] | None = None
    cancelled: CancelCause | None = None
    granting: Granting | None = None
    """The grant whose call runs now."""
    claim: Claim | None = None
    """What is to be settled when its first run has ended."""
    opened: Opened = Opened.REPLY
    commands: tuple[str, ...] = attrs.field(init=False)
    """Every command that began it."""
    cached: int = 0
    """The draft's revision that the block cache has."""

    def __attrs_post_init__(self) -> None:
        self.commands = (
            (self.command_id,) if self.claim is None else self.claim.commands
        )

    @property
    def claimed(self) -> Claim:
        """The claim, of a turn whose first run has not ended."""
        assert self.claim is not None
        return self.claim

    def takes(self, command_id: str) -> bool:
        """Whether that command began it, alone or with others."""
        return command_id in self.commands

    @property
    def stays_open(self) -> bool:
        """Whether its question outlives the cancel."""
        return self.cancelled in KEEPS_QUESTION and bool(unresolved(self.message))

    def unsaved(self) -> tuple[Block, ...] | None:
        """Return the blocks that the tape lacks, as far as they fit a fact.

        ``None``: nothing has changed since the last time.
        """
        draft = None if self.active is None else self.active.draft
        if draft is None or draft.revision == self.cached:
            return None
        self.cached = draft.revision
        return in_revisions(draft.unsaved)[0]


def never_ran(active: ActiveRun, exited: Exited) -> bool:
    """Whether a run was cancelled before its first step.

    There is no start fact then, so nothing settles it.
    """
    return isinstance(exited.reason, Stopped) and not active.registered
