"""A fake `Operation` that knows an effect before its dispatch when it sees one.

It looks at the workspace when it is made and again when `dispatch` is awaited: a
file that appeared, went or changed in between is an effect too early, and so is a
process that carries this operation's marker. `order` is what happened, in order.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from greenroom.actors.tools import (
    Needs,
    Question,
    Tool,
    ToolContext,
    ToolResult,
    builtin_tools,
)
from greenroom.protocol import (
    Diff,
    Location,
    OperationId,
    PlanEntry,
    RunId,
    SessionId,
    ToolTarget,
)

RUN_ID = RunId("11111111-1111-4111-8111-111111111111")
MARKER = "GREENROOM_OPERATION"

MADE: set[str] = set()
"""The hashes of all operations made in this process."""


def make_context(tmp_path: Path, **changes: object) -> ToolContext:
    """Return a context whose workspace is a new folder in *tmp_path*."""
    workspace = tmp_path.resolve() / "workspace"
    workspace.mkdir(exist_ok=True)
    context = ToolContext(
        session_id=SessionId("session"),
        run_id=RUN_ID,
        workspace=workspace,
        permission_mode="default",
        scratch=tmp_path.resolve() / "scratch",
        environment=dict(os.environ),
    )
    return attrs.evolve(context, **changes)


@attrs.define(eq=False)
class FakeOperation:
    """One operation over *context*; `on_dispatch` may raise, or look around."""

    context: ToolContext
    # Unlike that of any other test run on the machine, for the search for orphans.
    call_id: str = f"call_{os.getpid()}"
    request_seq: int = 1
    granted: bool = False
    on_dispatch: Callable[[], None] = lambda: None
    order: list[str] = attrs.field(factory=list, init=False)
    shown: list[str] = attrs.field(factory=list, init=False)
    reports: list[tuple[str | None, tuple[Location, ...], tuple[Diff, ...]]] = (
        attrs.field(factory=list, init=False)
    )
    plans: list[tuple[PlanEntry, ...]] = attrs.field(factory=list, init=False)
    dispatched: trio.Event = attrs.field(factory=trio.Event, init=False)
    _before: dict[str, str] = attrs.field(factory=dict, init=False)
    _changed: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._before = picture(self.context.workspace)
        MADE.add(self.id.hash)

    @property
    def id(self) -> OperationId:
        return OperationId(RUN_ID, self.request_seq, self.call_id)

    @property
    def idempotency_key(self) -> str:
        return self.id.idempotency_key

    async def dispatch(self, target: ToolTarget | None = None) -> None:
        assert "dispatch" not in self.order, "dispatched twice"
        assert picture(self.context.workspace) == self._before, (
            "a file changed before dispatch"
        )
        assert not list(processes_of(self.id.hash)), "a process started before dispatch"
        await trio.lowlevel.checkpoint()
        self.on_dispatch()
        self.order.append("dispatch")
        self.dispatched.set()

    def progress(self, text: str) -> None:
        assert "dispatch" in self.order, "output before dispatch"
        self.order.append("progress")
        self.shown.append(text)
        self._changed.set()
        self._changed = trio.Event()

    async def until_shown(self, text: str) -> None:
        """Wait until *text* is part of the live output."""
        while text not in "".join(self.shown):
            await self._changed.wait()

    def report(
        self,
        *,
        title: str | None = None,
        locations: Sequence[Location] = (),
        diffs: Sequence[Diff] = (),
    ) -> None:
        self.order.append("report")
        self.reports.append((title, tuple(locations), tuple(diffs)))

    async def update_plan(self, entries: tuple[PlanEntry, ...]) -> int:
        assert "dispatch" in self.order, "the plan changed before dispatch"
        await trio.lowlevel.checkpoint()
        self.order.append("plan")
        self.plans.append(entries)
        return len(self.plans)


def picture(folder: Path) -> dict[str, str]:
    """Return what is in *folder*: every path with its kind and content."""
    return {
        os.path.relpath(os.path.join(parent, name), folder): _content(
            os.path.join(parent, name)
        )
        for parent, folders, names in os.walk(folder)
        for name in (*folders, *names)
    }


def _content(path: str) -> str:
    if os.path.islink(path):
        return f"link to {os.readlink(path)}"
    status = os.lstat(path)
    if status.st_size > 1 << 20:
        return f"{status.st_size} bytes of {status.st_mtime_ns}"
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    return "other"


def processes_of(*operations: str) -> Iterator[int]:
    """Yield the processes that carry the marker of one of *operations* (Linux)."""
    wanted = {f"{MARKER}={operation}".encode() for operation in operations}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                members = set(file.read().split(b"\0"))
        except OSError:
            continue
        if wanted & members:
            yield int(name)


def builtin(name: str) -> Tool:
    """Return the built-in tool called *name*."""
    return next(tool for tool in builtin_tools() if tool.definition.name == name)


async def check(name: str, context: ToolContext, **arguments: Any) -> Needs:
    """Return what a call of a built-in tool needs."""
    needs = await builtin(name).precheck(arguments, context)
    assert not isinstance(needs, Question)
    return needs


async def call(name: str, context: ToolContext, **arguments: Any) -> ToolResult:
    """Return the result of a call of a built-in tool, through both doors."""
    await builtin(name).precheck(arguments, context)
    operation = FakeOperation(context)
    result = await builtin(name).run(arguments, operation)
    assert operation.order[:1] == ["dispatch"]
    return result
