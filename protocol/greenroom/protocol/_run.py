"""The loop of a run, as a value: state and event in, state and command out.

*Rule 1*: every decision about what a run does next is in this file. *Rule 2*: it
performs nothing and knows no clock, no provider and no tool; the run actor performs
the command and comes back with the event it led to.

Theory of operation. A run asks the model (`AskModel`), which ends in `RoundEnded`.
From there one of three: the calls are run (`RunCalls`), the calls are refused
(`RefuseCalls`), or the run ends (`End`). A batch ends in `BatchEnded`, refused calls
in `CallsRefused`; then the next round begins, or the run ends. Each state accepts
the events of `RUN_TRANSITIONS` and no other. What ends a run from outside
(`Interrupted`) or from inside (`Faulted`) is accepted in every state but the last.

Precedence inside an event is the order of the `if`s: for a round, a failure beats
everything, then a cut batch, then a missing stop (RUN-16..RUN-20); after a batch, a
fatal tool error, then a pause, then a loop without progress, then waiting input of the
user, then the round limit (TOL-04).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, Literal, assert_never, final

import attrs

from ._counters import Counters
from ._errors import InternalError
from ._ids import ItemId
from ._journal import RunOutcome
from ._messages import MessageStatus
from ._stream import StopReason

MAX_TOOL_CALLS: Final = 128
"""Tool calls that one run may start (TOL-07)."""

CancelWord = Literal[
    "user_stop",
    "pending_input",
    "deadline",
    "parent",
    "shutdown",
    "process_exit",
    "superseded",
]

OUTPUT_CUT: Final = (
    "not executed: the reply was cut by the output limit before this call was whole; "
    "send it again, in smaller parts if needed"
)
TOO_MANY_CALLS: Final = (
    f"not executed: this turn has reached its limit of {MAX_TOOL_CALLS} tool calls"
)


@attrs.frozen
class Fault:
    """What went wrong, for the user and for programs."""

    code: str
    text: str


NO_PROGRESS: Final = Fault(
    "no_progress", "the model repeated the same tool calls and got the same results"
)


class RunState(Enum):
    """Where a run stands."""

    NEW = "new"
    ASKING = "asking"
    """The model answers."""
    WORKING = "working"
    """A batch of calls runs."""
    REFUSING = "refusing"
    """Calls get a result that says why they do not run."""
    ENDED = "ended"


#### Events


@attrs.frozen
class Begun:
    """The run may start."""

    stuck: bool = False
    """The batch that paused it before brought nothing new once more (TOL-22)."""


@attrs.frozen
class RoundEnded:
    """The model's response is over, well or not."""

    stop: StopReason | None
    completed: tuple[ItemId, ...] = ()
    """Calls whose arguments are whole, in the provider's order."""
    cut: tuple[ItemId, ...] = ()
    """Calls that were announced but not finished."""
    has_blocks: bool = True
    """Whether the message has any block yet."""
    failure: Fault | None = None
    overflow: bool = False
    """The failure is a context overflow."""
    counters: Counters | None = None
    """Where the requests and attempts of the round got to."""


@attrs.frozen
class BudgetReached:
    """The request was not sent: the user is asked whether to use more."""


@attrs.frozen
class BatchEnded:
    """Every call of the batch has a result, or waits for the user."""

    started: int
    """Calls that began to execute (TOL-08)."""
    paused: bool = False
    fatal: Fault | None = None
    """The batch cannot go on: tool results do not fit (TOL-17)."""
    stuck: bool = False
    """The same batch brought the same results too often (TOL-20)."""
    steered: bool = False
    """Newer input of the user waits: the turn makes way for it (RUN-19)."""

    @property
    def ends(self) -> bool:
        """Whether the run ends with this batch, whoever cancels it now (TOL-04)."""
        return self.fatal is not None or self.paused or self.stuck


@attrs.frozen
class CallsRefused:
    """The calls of `RefuseCalls` have their results."""


@attrs.frozen
class Interrupted:
    """Somebody cancelled the run."""

    cause: CancelWord


@attrs.frozen
class Faulted:
    """Something raised that the loop has no other event for (RUN-10)."""

    fault: Fault
    overflow: bool = False


RunEvent = (
    Begun
    | RoundEnded
    | BudgetReached
    | BatchEnded
    | CallsRefused
    | Interrupted
    | Faulted
)


#### Commands


@attrs.frozen
class AskModel:
    """Send the next request; ``counters`` have entered its round."""

    counters: Counters


@attrs.frozen
class RunCalls:
    """Execute these calls."""

    calls: tuple[ItemId, ...]


@attrs.frozen
class RefuseCalls:
    """Give these calls an error result, without checking or running them."""

    calls: tuple[ItemId, ...]
    note: str


@attrs.frozen
class Terminal:
    """How a run ended: what the journal, the message and the caller are told."""

    outcome: RunOutcome
    stop_reason: str
    message_status: MessageStatus
    fault: Fault | None = None


PAUSED: Final = Terminal("paused", "interaction", "pending")


@attrs.frozen
class End:
    """Settle with this terminal."""

    terminal: Terminal


RunCommand = AskModel | RunCalls | RefuseCalls | End


_Transitions = Mapping[RunState, Mapping[type[RunEvent], tuple[RunState, ...]]]

RUN_TRANSITIONS: Final[_Transitions] = {
    RunState.NEW: {
        Begun: (RunState.ASKING, RunState.ENDED),
        Interrupted: (RunState.ENDED,),
        Faulted: (RunState.ENDED,),
    },
    RunState.ASKING: {
        RoundEnded: (RunState.WORKING, RunState.REFUSING, RunState.ENDED),
        BudgetReached: (RunState.ENDED,),
        Interrupted: (RunState.ENDED,),
        Faulted: (RunState.ENDED,),
    },
    RunState.WORKING: {
        BatchEnded: (RunState.ASKING, RunState.ENDED),
        Interrupted: (RunState.ENDED,),
        Faulted: (RunState.ENDED,),
    },
    RunState.REFUSING: {
        CallsRefused: (RunState.ASKING, RunState.ENDED),
        Interrupted: (RunState.ENDED,),
        Faulted: (RunState.ENDED,),
    },
    RunState.ENDED: {},
}


@final
@attrs.frozen
class RunMachine:
    """A run, between two commands. A value: nothing needs undoing."""

    state: RunState = RunState.NEW
    counters: Counters = attrs.field(factory=Counters)
    max_rounds: int | None = None
    """Not a positive integer means unlimited (RUN-06)."""
    tool_calls: int = 0
    """Calls that started, those of earlier runs on the message included."""
    truncation_used: bool = False
    """The one round that follows a cut batch was spent (TOL-15)."""
    then: Terminal | None = None
    """Where to end once the calls are refused; `None` means the next round."""

    def after(self, event: RunEvent) -> tuple[RunMachine, RunCommand]:
        """Return what the run is after *event*, and what to do now.

        Raises:
            InternalError: the event does not belong to this state.
        """
        targets = RUN_TRANSITIONS[self.state].get(type(event))
        if targets is None:
            raise InternalError(
                f"can't apply {type(event).__name__} when the run is {self.state.value}"
            )
        machine, command = self._step(event)
        assert machine.state in targets
        return machine, command

    def _step(self, event: RunEvent) -> tuple[RunMachine, RunCommand]:
        match event:
            case Begun(stuck=True):
                return self._end(_error("no_progress", NO_PROGRESS))
            case Begun():
                return self._next_round()
            case RoundEnded():
                reached = event.counters or self.counters
                return attrs.evolve(self, counters=reached)._after_round(event)
            case BudgetReached():
                return self._end(PAUSED)
            case BatchEnded():
                return self._after_batch(event)
            case CallsRefused():
                return self._next_round() if self.then is None else self._end(self.then)
            case Interrupted(cause=cause):
                return self._end(interrupted_terminal(cause))
            case Faulted(fault=fault, overflow=overflow):
                reason = "context_window" if overflow else fault.code
                return self._end(_error(reason, fault))
            case _:
                assert_never(event)

    def _next_round(self) -> tuple[RunMachine, RunCommand]:
        limit = round_limit(self.max_rounds)
        if limit is not None and limit <= self.counters.round:
            text = f"the turn has reached its limit of {limit} model rounds"
            return self._end(_error("max_turns", Fault("max_turns", text)))
        counters = self.counters.enter_round()
        machine = attrs.evolve(
            self, state=RunState.ASKING, counters=counters, then=None
        )
        return machine, AskModel(counters)

    def _after_round(self, event: RoundEnded) -> tuple[RunMachine, RunCommand]:
        if event.failure is not None:
            reason = "context_window" if event.overflow else "provider_error"
            return self._end(_error(reason, event.failure))
        calls = event.completed + event.cut
        if event.stop == "max_tokens" and calls:
            return self._after_truncation(calls)
        if event.stop is None or event.stop == "error":
            text = "the provider ended the reply without saying why"
            return self._end(_error("provider_error", Fault("provider_error", text)))
        if event.stop == "tool_use":
            return self._after_calls(event)
        if not event.has_blocks:
            text = "the model sent nothing"
            return self._end(_error("empty_response", Fault("no_model_response", text)))
        return self._end(Terminal("completed", event.stop, "sent"))

    def _after_truncation(
        self, calls: tuple[ItemId, ...]
    ) -> tuple[RunMachine, RunCommand]:
        then = None
        if self.truncation_used:
            then = Terminal("completed", "max_tokens", "sent")
        machine = attrs.evolve(
            self, state=RunState.REFUSING, truncation_used=True, then=then
        )
        return machine, RefuseCalls(calls, OUTPUT_CUT)

    def _after_calls(self, event: RoundEnded) -> tuple[RunMachine, RunCommand]:
        if not event.completed:
            text = "the model stopped for a tool call but sent none that is whole"
            return self._end(_error("provider_error", Fault("provider_error", text)))
        if self.tool_calls + len(event.completed) > MAX_TOOL_CALLS:
            then = Terminal("completed", "max_tool_calls", "sent")
            machine = attrs.evolve(self, state=RunState.REFUSING, then=then)
            return machine, RefuseCalls(event.completed, TOO_MANY_CALLS)
        return attrs.evolve(self, state=RunState.WORKING), RunCalls(event.completed)

    def _after_batch(self, event: BatchEnded) -> tuple[RunMachine, RunCommand]:
        counted = attrs.evolve(self, tool_calls=self.tool_calls + event.started)
        if event.fatal is not None:
            return counted._end(_error("tool_error", event.fatal))
        if event.paused:
            return counted._end(PAUSED)
        if event.stuck:
            return counted._end(_error("no_progress", NO_PROGRESS))
        if event.steered:
            return counted._end(interrupted_terminal("pending_input"))
        return counted._next_round()

    def _end(self, terminal: Terminal) -> tuple[RunMachine, RunCommand]:
        return attrs.evolve(self, state=RunState.ENDED, then=None), End(terminal)


def round_limit(value: object) -> int | None:
    """Return *value* as a limit of rounds; what is none means no limit (RUN-06)."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    return None


_INTERRUPTED: Final[Mapping[CancelWord, tuple[RunOutcome, str, str, str]]] = {
    "user_stop": ("aborted", "user_stop", "user_canceled", "stopped by the user"),
    "pending_input": (
        "completed", "pending_input", "pending_input", "made way for newer input",
    ),
    "deadline": ("error", "deadline", "deadline", "the deadline has passed"),
    "shutdown": (
        "aborted", "shutdown", "session_interrupted", "the engine was shut down",
    ),
    "parent": ("aborted", "parent", "parent", "what started this has ended"),
    "superseded": ("aborted", "superseded", "superseded", "a newer run took over"),
    "process_exit": (
        "error", "process_exit", "process_exit", "the agent's process has ended",
    ),
}  # fmt: skip


def interrupted_terminal(cause: CancelWord) -> Terminal:
    """Return the terminal of a run that was cancelled for *cause* (RUN-18)."""
    outcome, reason, code, text = _INTERRUPTED[cause]
    if outcome == "completed":
        return Terminal(outcome, reason, "sent")
    return Terminal(outcome, reason, "error", Fault(code, text))


def _error(reason: str, fault: Fault) -> Terminal:
    return Terminal("error", reason, "error", fault)
