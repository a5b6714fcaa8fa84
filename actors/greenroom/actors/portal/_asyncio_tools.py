"""Tools that are functions of asyncio: they run on the loop that opened the engine.

A call that is cancelled cancels the function's task and waits for its end, as long as
the tool's clean-up may take; after that the task is left to its loop. Its errors are
the tool's. A task that somebody else cancels, or that wants the whole process to end,
has failed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Final, TypeVar, cast, final, get_type_hints, overload

import attrs
import trio

from greenroom.actors.tools import (
    DEFAULT_CLEANUP_SECONDS,
    DEFAULT_TOOL_SECONDS,
    Doubt,
    Operation,
    Tool,
    ToolContext,
    tool,
)
from greenroom.protocol import (
    Diff,
    Location,
    OperationId,
    PlanEntry,
    ToolKind,
    ToolTarget,
)

from ._asyncio import awaited
from ._host import AsyncHost, current_host
from ._thread import Portal

R = TypeVar("R")
Function = Callable[..., Any]

MAX_TEXTS: Final = 256
"""Of progress that the engine has not seen; older ones are dropped."""

MAX_TEXT: Final = 16_384
"""Characters of one; what is longer is cut."""


@final
class AsyncOperation:
    """An `Operation` for a function of asyncio."""

    def __init__(self, operation: Operation, portal: Portal[Any]) -> None:
        self._operation = operation
        self._portal = portal
        self._texts = deque[str](maxlen=MAX_TEXTS)
        self._failure: Exception | None = None
        self._token = trio.lowlevel.current_trio_token()

    def __repr__(self) -> str:
        return f"<AsyncOperation {self.id!r}>"

    @property
    def id(self) -> OperationId:
        """See `Operation.id`."""
        return self._operation.id

    @property
    def idempotency_key(self) -> str:
        """See `Operation.idempotency_key`."""
        return self._operation.idempotency_key

    @property
    def granted(self) -> bool:
        """See `Operation.granted`."""
        return self._operation.granted

    @property
    def context(self) -> ToolContext:
        """See `Operation.context`."""
        return self._operation.context

    async def dispatch(self, target: ToolTarget | None = None) -> None:
        """See `Operation.dispatch`."""
        bound = partial(self._operation.dispatch, target)
        await awaited(self._portal.submit(bound))

    def progress(self, text: str) -> None:
        """See `Operation.progress`; of the newest 256 texts, 16 KiB each.

        Raises what showing an earlier one has raised.
        """
        if self._failure is not None:
            raise self._failure
        self._texts.append(str(text)[:MAX_TEXT])
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._show, idempotent=True)

    async def report(
        self,
        *,
        title: str | None = None,
        locations: Sequence[Location] = (),
        diffs: Sequence[Diff] = (),
    ) -> None:
        """See `Operation.report`; here it is awaited, and raises if it is wrong."""

        async def there() -> None:
            self._operation.report(title=title, locations=locations, diffs=diffs)

        await awaited(self._portal.submit(there))

    async def update_plan(self, entries: tuple[PlanEntry, ...]) -> int:
        """See `Operation.update_plan`."""
        bound = partial(self._operation.update_plan, entries)
        return await awaited(self._portal.submit(bound))

    def _show(self) -> None:
        try:
            while self._texts:
                self._operation.progress(self._texts.popleft())
        except Exception as exc:
            # Nothing may be raised into the queue of the run: it would break all of it.
            self._failure = exc


@overload
def asyncio_tool(fn: Function, /) -> Tool: ...


@overload
def asyncio_tool(
    *,
    name: str | None = None,
    read_only: bool = False,
    parallel_safe: bool | None = None,
    permission: str | Callable[..., str | None] | None = None,
    kind: ToolKind = "other",
    reviewable: bool = False,
    timeout: float = DEFAULT_TOOL_SECONDS,
    cleanup: float = DEFAULT_CLEANUP_SECONDS,
    reconcile: Callable[[Doubt], Any] | None = None,
) -> Callable[[Function], Tool]: ...


def asyncio_tool(
    fn: Function | None = None, /, **contract: Any
) -> Tool | Callable[[Function], Tool]:
    """Make a tool of a function, as `tool` does; one that is async is asyncio's.

    It runs on the loop that opened the engine. A first parameter that is an
    `AsyncOperation` is the call's operation. *reconcile* may be async, too.
    """
    seconds: float = contract.get("cleanup", DEFAULT_CLEANUP_SECONDS)
    reconcile: Callable[[Doubt], Any] | None = contract.pop("reconcile", None)
    if reconcile is not None:
        reconcile = _on_loop(reconcile, seconds)
    make = tool(**contract, reconcile=reconcile)

    def decorate(function: Function) -> Tool:
        return make(_on_loop(function, seconds))

    return decorate if fn is None else decorate(fn)


def _on_loop(fn: Function, cleanup: float) -> Function:
    if not inspect.iscoroutinefunction(fn):
        return fn

    @wraps(fn)
    async def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as *fn*'s
        host = current_host()
        if host is None or host.portal is None:
            raise RuntimeError(
                f"{fn.__qualname__} needs the event loop of asyncio; open the engine"
                " with greenroom.aio"
            )
        given = [
            AsyncOperation(cast(Operation, arg), host.portal) if at == taken else arg
            for at, arg in enumerate(args)
        ]
        return await _run(host, partial(fn, *given, **kwargs), cleanup)

    taken = 0 if _retype_operation(call, fn) else None
    return call


def _retype_operation(call: Function, fn: Function) -> bool:
    # What the engine's decorator looks for is its own type.
    try:
        hints = get_type_hints(fn, include_extras=True)
    except NameError:
        return False
    first = next(iter(inspect.signature(fn).parameters), None)
    if first is None or first not in hints:
        return False
    if hints[first] is Operation:
        raise TypeError(
            f"{fn.__qualname__} runs in asyncio, so it takes greenroom.aio.Operation"
        )
    if hints[first] is not AsyncOperation:
        return False
    call.__annotations__ = hints | {first: Operation}
    return True


#### A task on the loop


@final
@attrs.define(eq=False)
class _Errand:
    """A coroutine that is a task of the loop as long as it runs; used there only."""

    _make: Callable[[], Coroutine[Any, Any, Any]]
    _token: trio.lowlevel.TrioToken
    _done: trio.Event = attrs.field(factory=trio.Event, init=False)
    _task: asyncio.Task[Any] | None = attrs.field(default=None, init=False)
    _error: BaseException | None = attrs.field(default=None, init=False)
    _value: Any = attrs.field(default=None, init=False)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the task; on the loop."""
        self._task = loop.create_task(self._make())
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel the task; on the loop."""
        if self._task is not None:
            self._task.cancel()

    async def wait(self) -> None:
        """Wait for the end of the task; in the run."""
        await self._done.wait()

    def result(self) -> Any:  # noqa: ANN401 - of a function of anybody's
        """Return what it returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._value

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self._error = RuntimeError("the tool's task was cancelled by its program")
        elif isinstance(error := task.exception(), Exception):
            self._error = error
        elif error is not None:
            self._error = RuntimeError(f"the tool's task ended with {error!r}")
        else:
            self._value = task.result()
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._done.set)


async def _run(
    host: AsyncHost, make: Callable[[], Coroutine[Any, Any, Any]], cleanup: float
) -> Any:  # noqa: ANN401 - of a function of anybody's
    errand = _Errand(make, trio.lowlevel.current_trio_token())
    # Raises if the loop is closed, which is the tool's error.
    host.loop.call_soon_threadsafe(errand.start, host.loop)
    try:
        await errand.wait()
    except trio.Cancelled:
        with suppress(RuntimeError):
            host.loop.call_soon_threadsafe(errand.cancel)
            with trio.move_on_after(cleanup, shield=True):
                await errand.wait()
        raise
    return errand.result()
