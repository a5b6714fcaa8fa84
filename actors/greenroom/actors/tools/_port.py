"""The port between a run and its tools: what each may ask of the other.

A call passes two doors. `Tool.precheck` says what the call needs and touches
nothing; whoever refuses there raises `ToolRefused` and nothing is dispatched
(TOL-12). `Tool.run` has the effect, and awaits `Operation.dispatch` right before it
(JRN-09): once that returns, the fact that the effect may happen is on disk. An
effect before dispatch is a bug, returning without dispatch means no effect.

Everything here is a value or a Protocol. The run makes the operations; this package
makes the tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

import attrs

from greenroom.protocol import (
    Diff,
    GreenroomError,
    Location,
    OperationId,
    PlanEntry,
    QuestionOption,
    RunId,
    SessionId,
    ToolDefinition,
    ToolKind,
    ToolTarget,
)

INLINE_CHARS: Final = 5_000
"""What a tool that lists shows of its output itself (TOL-16)."""

DEFAULT_TOOL_SECONDS: Final = 900.0
"""More than any built-in tool's own clock, so that the nearer one speaks first."""

DEFAULT_CLEANUP_SECONDS: Final = 2.0


@attrs.define(eq=False)
class Readable:
    """Folders outside the workspace that file tools may read; a run may get others."""

    folders: tuple[Path, ...] = ()


@attrs.frozen
class ToolContext:
    """What a tool may know of its surroundings; the same for the whole of a run."""

    session_id: SessionId
    run_id: RunId
    workspace: Path
    """The session's folder, resolved once: no symlink is left in it."""
    permission_mode: str
    """The run's snapshot, as tools see it: default or full_access (TOL-09)."""
    scratch: Path
    """A folder outside the workspace for output that is kept; made when needed."""
    environment: Mapping[str, str]
    """The engine's environment; child processes get an allow-listed part of it."""
    inline_chars: int = INLINE_CHARS
    """Longer output of list, find and grep is kept in a file; that of a command only
    where the context has no room for it (TOL-16)."""
    readable: Readable = attrs.field(factory=Readable)
    """The folders of the Skills that the run may use now (SKL-02)."""


class Operation(Protocol):
    """One tool operation, made by the run and handed to `Tool.run`."""

    @property
    def id(self) -> OperationId:
        """The operation's identity (TOL-01)."""
        ...

    @property
    def idempotency_key(self) -> str:
        """A key for the outside world, equal for equal operations in any process."""
        ...

    @property
    def granted(self) -> bool:
        """Whether somebody has allowed this call; then nothing need be asked again."""
        ...

    @property
    def context(self) -> ToolContext:
        """The surroundings of the run."""
        ...

    async def dispatch(self, target: ToolTarget | None = None) -> None:
        """Make it durable that the effect may now happen; call it right before.

        Raises whatever stops the run (a cancel, a journal failure); then there must
        be no effect. Calling it twice is a bug.
        """
        ...

    def progress(self, text: str) -> None:
        """Show *text* to whoever watches. Bounded, lossy, never waits."""
        ...

    def report(
        self,
        *,
        title: str | None = None,
        locations: Sequence[Location] = (),
        diffs: Sequence[Diff] = (),
    ) -> None:
        """Tell watchers what the call turned out to be about."""
        ...

    async def update_plan(self, entries: tuple[PlanEntry, ...]) -> int:
        """Replace the session's plan durably and return its new revision."""
        ...


def _is_time(_: object, attribute: attrs.Attribute[float], value: object) -> None:
    # Not a number is neither.
    if not (isinstance(value, int | float) and value >= 0):
        raise ValueError(
            f"{attribute.name} must be a number of seconds, 0 or more, got {value!r}"
        )


@attrs.frozen
class Needs:
    """What a call wants, said before it may run: pure data, no effect.

    Raises:
        ValueError: a time is not a number, or below 0.
    """

    permission: str | None
    """One line for the user ("write src/a.py"); ``None``: nothing to ask."""
    title: str
    kind: ToolKind
    locations: tuple[Location, ...] = ()
    diffs: tuple[Diff, ...] = ()
    detail: str = ""
    """More for the user to judge by, a whole script for example."""
    always_ask: bool = False
    """Ask whatever the permission mode is (TOL-10)."""
    origin: Literal["skill-draft-confirmation", "acp-permission"] | None = None
    """What asks, when it is not the call itself: a draft is shown, then installed or
    discarded (INT-10); an external agent asks through the call."""
    reviewable: bool = False
    """The reviewer of ``auto_approve`` looks at it though nothing is asked (TOL-11)."""
    timeout: float = attrs.field(default=DEFAULT_TOOL_SECONDS, validator=_is_time)
    """Seconds the call may take once it runs; then it is cancelled and has failed."""
    cleanup: float = attrs.field(default=DEFAULT_CLEANUP_SECONDS, validator=_is_time)
    """Seconds it may take to end after that; then it is left behind."""


@attrs.frozen
class Question:
    """A question for the user instead of an effect: the call pauses the run."""

    text: str
    header: str
    options: tuple[QuestionOption, ...]
    multiple: bool = False
    custom: bool = True
    """Whether an answer in the user's own words is taken."""


@attrs.frozen
class ToolResult:
    """What the model reads, and what the user is shown, of a finished call."""

    text: str
    is_error: bool = False
    locations: tuple[Location, ...] = ()
    diffs: tuple[Diff, ...] = ()
    title: str | None = None
    kept: Path | None = None
    """The file that holds the whole output when ``text`` is only a preview (TOL-16)."""


class Tool(Protocol):
    """Something the model can call."""

    @property
    def definition(self) -> ToolDefinition:
        """Name, description and argument schema, as the model sees them."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether the tool changes nothing."""
        ...

    @property
    def parallel_safe(self) -> bool:
        """Whether calls may overlap with others of the batch (TOL-06)."""
        ...

    async def precheck(
        self, arguments: dict[str, Any], context: ToolContext
    ) -> Needs | Question:
        """Validate *arguments* and say what the call needs. Touches nothing.

        Raises:
            ToolRefused: the call can't run; the message is for the model.
        """
        ...

    async def run(self, arguments: dict[str, Any], operation: Operation) -> ToolResult:
        """Do it: judge again, await ``operation.dispatch()``, have the effect.

        Whatever it raises becomes an error result (TOL-13); cancellation passes
        through after the effect has been stopped.

        Raises:
            ToolRefused: refused after all; nothing was dispatched.
            PermissionRequired: it needs a permission after all; before dispatch only.
        """
        ...


@attrs.frozen
class Doubt:
    """An operation whose process died between its dispatch and its outcome."""

    id: OperationId
    arguments: dict[str, Any]
    context: ToolContext

    @property
    def idempotency_key(self) -> str:
        """The key that the operation was given when it ran."""
        return self.id.idempotency_key


@runtime_checkable
class Reconciling(Protocol):
    """A tool that can find out what became of an operation in doubt."""

    async def reconcile(self, doubt: Doubt) -> ToolResult | None:
        """Return what the operation came to; ``None`` if that can't be known.

        It looks and never acts: nothing is executed again. Asked once, when the
        session is loaded, with a bound on the time; raising means not known.
        """
        ...


class ToolRefused(GreenroomError):
    """A call that does not run; the message tells the model why and how to mend it."""

    code = "tool_refused"


class PermissionRequired(GreenroomError):
    """A run found, before its dispatch, that it must ask the user (TOL-10, JRN-14)."""

    code = "permission_required"

    def __init__(self, needs: Needs) -> None:
        super().__init__(f"needs a permission: {needs.permission or needs.title}")
        self.needs = needs
