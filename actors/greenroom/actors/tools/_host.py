"""Tools that live in another process: their host, and which of them are offered.

A host is started when it is first needed and again for the call after its death; a call
that it dies in fails with an error that names it, and is never sent again (TOL-27).
What it offers is hostile: each tool is judged alone, so that a bad one hides no other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol, final

import attrs
import msgspec
import trio

from greenroom.protocol import GreenroomError, ToolDefinition, ToolTarget

from ._excerpt import one_line
from ._port import Needs, Operation, ToolContext, ToolRefused, ToolResult
from ._registry import check_definition

MAX_TOOLS: Final = 1_000
"""Of one host; what comes behind them is left out."""

MAX_SCHEMA_BYTES: Final = 65_536
"""Of one tool; the model reads it with every request."""

START_SECONDS: Final = 30.0


class ToolHost(Protocol):
    """A running host, as its connection sees it."""

    async def call(
        self, name: str, arguments: dict[str, Any], idempotency_key: str
    ) -> ToolResult:
        """Run a tool there.

        Raises:
            HostDiedError: the host ended before it answered.
        """
        ...

    async def aclose(self) -> None:
        """End the host. Called once, also when it is dead already."""
        ...


class HostDiedError(GreenroomError):
    """The process behind a connection is gone."""

    code = "host_died"


class ToolHostError(GreenroomError):
    """A call failed because of its host, not of its tool; the sentence names it."""

    code = "tool_host_failed"

    def __init__(self, host: str, problem: str) -> None:
        super().__init__(f"the tool host {host!r} {problem}")
        self.host = host


@final
@attrs.define(eq=False)
class HostKeeper:
    """Keeps one host alive: starts it when it is needed, again when it has died."""

    name: str
    open: Callable[[], Awaitable[ToolHost]]
    """Starts the host; a call that fails or is cancelled leaves nothing behind."""
    starts: int = attrs.field(default=0, init=False)
    """How often it was started."""
    _host: ToolHost | None = attrs.field(default=None, init=False)
    _starting: trio.Event | None = attrs.field(default=None, init=False)

    async def ready(self) -> ToolHost:
        """Return the running host, started if it has to be.

        Raises:
            ToolHostError: it can't be started.
        """
        while self._host is None:
            if self._starting is None:
                await self._start()
            else:
                # Calls that come together start one host; if it can't, each tries.
                await self._starting.wait()
        return self._host

    async def call(
        self, host: ToolHost, name: str, arguments: dict[str, Any], key: str
    ) -> ToolResult:
        """Run a tool at *host*, once.

        Raises:
            ToolHostError: the host died meanwhile. The next `ready` starts another.
        """
        try:
            return await host.call(name, arguments, key)
        except HostDiedError as exc:
            await self._bury(host)
            raise ToolHostError(
                self.name,
                "died during this call; what it did is not known. It is started again"
                " for the next call",
            ) from exc

    async def aclose(self) -> None:
        """End the host, if it runs."""
        host, self._host = self._host, None
        if host is not None:
            await host.aclose()

    async def _start(self) -> None:
        started = self._starting = trio.Event()
        self.starts += 1
        try:
            with trio.fail_after(START_SECONDS):
                self._host = await self.open()
        except Exception as exc:
            why = str(exc) or f"it took more than {START_SECONDS:g} s"
            raise ToolHostError(self.name, f"can't be started: {why}") from exc
        finally:
            self._starting = None
            started.set()

    async def _bury(self, host: ToolHost) -> None:
        # Calls that overlapped with this one find it gone, or a new one in its place.
        if self._host is host:
            self._host = None
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                await host.aclose()


@final
@attrs.frozen(eq=False)
class HostedTool:
    """One tool of a host."""

    keeper: HostKeeper
    definition: ToolDefinition
    read_only: bool = False
    parallel_safe: bool = False

    async def precheck(self, arguments: dict[str, Any], context: ToolContext) -> Needs:
        """Say what is asked: what a foreign tool does is not known here."""
        await trio.lowlevel.checkpoint()
        title = f"{self.keeper.name}: {self.definition.name}"
        shown = msgspec.json.format(msgspec.json.encode(arguments)).decode()
        return Needs(
            permission=f"call {self.definition.name} of {self.keeper.name}",
            title=title,
            kind="other",
            detail=shown,
        )

    async def run(self, arguments: dict[str, Any], operation: Operation) -> ToolResult:
        """Run it at the host. A host that can't be started refuses: nothing happened.

        Raises:
            ToolRefused: the host can't be started.
            ToolHostError: the host died.
        """
        name = self.definition.name
        try:
            host = await self.keeper.ready()
        except ToolHostError as exc:
            raise ToolRefused(str(exc)) from exc
        await operation.dispatch(ToolTarget(self.keeper.name, original_name=name))
        key = operation.idempotency_key
        return await self.keeper.call(host, name, arguments, key)


@attrs.frozen
class LeftOut:
    """A tool that is not offered, and why."""

    name: str
    problem: str


@attrs.frozen
class Offer:
    """What of a host's list can be used."""

    tools: tuple[HostedTool, ...]
    left_out: tuple[LeftOut, ...]


def offered(keeper: HostKeeper, listed: Iterable[ToolDefinition]) -> Offer:
    """Judge each tool of *listed* alone; the first of two with one name is taken."""
    tools: dict[str, HostedTool] = {}
    left_out: list[LeftOut] = []
    for definition in listed:
        problem = _problem(definition, taken=definition.name in tools)
        if problem is None and len(tools) == MAX_TOOLS:
            problem = f"the host has more than {MAX_TOOLS} tools"
        if problem is None:
            tools[definition.name] = HostedTool(keeper, definition)
        elif len(left_out) < MAX_TOOLS:
            left_out.append(LeftOut(one_line(definition.name, 80), problem))
    return Offer(tuple(tools.values()), tuple(left_out))


def _problem(definition: ToolDefinition, *, taken: bool) -> str | None:
    if taken:
        return "another tool of the host has the same name"
    try:
        check_definition(definition)
        size = len(msgspec.json.encode(definition.parameters))
    except (ValueError, TypeError, RecursionError) as exc:
        return one_line(str(exc), 200)
    if size > MAX_SCHEMA_BYTES:
        return f"its schema has {size} bytes, more than {MAX_SCHEMA_BYTES}"
    return None
