"""Tools from plain typed functions: the `tool` decorator.

The annotated parameters become the argument schema, the docstring the description.
Dispatch is made durable before the body starts, unless the function asks for the
`Operation` as its first parameter and does that itself; one that is not async asks for
a `BlockingOperation`. A function that is not async runs in a worker thread: on cancel
it is abandoned, its result is not used, and it may ask
``trio.from_thread.check_cancelled()`` whether to stop.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, get_type_hints, overload

import attrs
import msgspec

from greenroom.protocol import ToolKind, safe_text

from ._excerpt import MAX_RESULT_CHARS, cut_middle, one_line
from ._port import (
    DEFAULT_CLEANUP_SECONDS,
    DEFAULT_TOOL_SECONDS,
    Doubt,
    Needs,
    Operation,
    ToolContext,
    ToolResult,
)
from ._threads import BlockingOperation, in_thread
from ._typed import TypedTool, define

Function = Callable[..., Any]
Reconcile = Callable[[Doubt], Any]
Permission = str | Callable[..., str | None] | None

_OPERATIONS: Final[tuple[type, ...]] = (Operation, BlockingOperation)


@overload
def tool(fn: Function, /) -> TypedTool[Any]: ...


@overload
def tool(
    *,
    name: str | None = None,
    read_only: bool = False,
    parallel_safe: bool | None = None,
    permission: Permission = None,
    kind: ToolKind = "other",
    reviewable: bool = False,
    timeout: float = DEFAULT_TOOL_SECONDS,
    cleanup: float = DEFAULT_CLEANUP_SECONDS,
    reconcile: Reconcile | None = None,
) -> Callable[[Function], TypedTool[Any]]: ...


def tool(
    fn: Function | None = None,
    /,
    *,
    name: str | None = None,
    read_only: bool = False,
    parallel_safe: bool | None = None,
    permission: Permission = None,
    kind: ToolKind = "other",
    reviewable: bool = False,
    timeout: float = DEFAULT_TOOL_SECONDS,
    cleanup: float = DEFAULT_CLEANUP_SECONDS,
    reconcile: Reconcile | None = None,
) -> TypedTool[Any] | Callable[[Function], TypedTool[Any]]:
    """Make a tool of a typed function.

    Args:
        fn: The function; a parameter's description is given as
            ``Annotated[str, msgspec.Meta(description="…")]``. It returns text, a
            `ToolResult`, or a value that becomes JSON.
        name: The tool's name; the function's when absent.
        read_only: It changes nothing.
        parallel_safe: Calls may overlap; as ``read_only`` when absent.
        permission: What the user is asked: a sentence, or a function of the same
            arguments that returns one, or ``None`` for nothing to ask.
        kind: What kind of thing it does, for those who watch.
        reviewable: In ``auto_approve`` the reviewer looks at each call, though the
            user is asked nothing (TOL-11).
        timeout: Seconds a call may take; then it is cancelled and has failed.
        cleanup: Seconds it may take to end after that; then it is left behind.
        reconcile: Finds out what became of a call whose process died while it ran: a
            function of a `Doubt` that returns what the call would have, or ``None`` if
            that can't be known. It looks and never acts. One that is not async runs in
            a worker thread.

    Raises:
        TypeError: The function's signature can't be made into a schema.
        ValueError: A time is not a positive number.
    """
    if not (timeout > 0 and cleanup >= 0):
        raise ValueError(
            f"a tool needs a timeout above 0 and a cleanup of 0 or more seconds, got"
            f" {timeout!r} and {cleanup!r}"
        )
    make = partial(
        _make,
        name=name,
        read_only=read_only,
        parallel_safe=parallel_safe,
        permission=permission,
        asks=Needs(
            permission=None,
            title="",
            kind=kind,
            reviewable=reviewable,
            timeout=timeout,
            cleanup=cleanup,
        ),
        reconcile=reconcile,
    )
    return make if fn is None else make(fn)


def _make(
    fn: Function,
    *,
    name: str | None,
    read_only: bool,
    parallel_safe: bool | None,
    permission: Permission,
    asks: Needs,
    reconcile: Reconcile | None,
) -> TypedTool[Any]:
    name = name or fn.__name__
    operation_type, parameters = _parameters(fn)
    arguments = msgspec.defstruct(
        name, parameters, frozen=True, kw_only=True, forbid_unknown_fields=True
    )
    call = _caller(fn, operation_type)

    async def check(value: msgspec.Struct, context: ToolContext) -> Needs:
        asked = permission(**_members(value)) if callable(permission) else permission
        sentence = None if asked is None else one_line(asked, 500)
        return attrs.evolve(asks, permission=sentence, title=name)

    async def perform(value: msgspec.Struct, operation: Operation) -> ToolResult:
        return _result(await call(operation, _members(value)))

    async def find_out(doubt: Doubt) -> ToolResult | None:
        known = None if reconcile is None else await _called(reconcile, doubt)
        return None if known is None else _result(known)

    return TypedTool(
        definition=define(name, inspect.getdoc(fn) or "", arguments),
        arguments=arguments,
        check=check,
        perform=perform,
        read_only=read_only,
        parallel_safe=read_only if parallel_safe is None else parallel_safe,
        find_out=None if reconcile is None else find_out,
    )


def _parameters(
    fn: Function,
) -> tuple[type | None, list[tuple[str, Any] | tuple[str, Any, Any]]]:
    try:
        hints = get_type_hints(fn, include_extras=True)
    except NameError as exc:
        raise TypeError(f"{fn.__qualname__}: {exc}; its types must be global") from exc
    parameters = list(inspect.signature(fn).parameters.values())
    first: object = hints.get(parameters[0].name) if parameters else None
    operation_type = next((t for t in _OPERATIONS if first is t), None)
    is_async = inspect.iscoroutinefunction(fn)
    if first is Operation and not is_async:
        raise TypeError(
            f"{fn.__qualname__} takes the operation, so it must be async; a function"
            " that is not takes a BlockingOperation"
        )
    if first is BlockingOperation and is_async:
        raise TypeError(f"{fn.__qualname__} is async, so it takes an Operation")
    skipped = 0 if operation_type is None else 1
    return operation_type, [
        _field(fn, parameter, hints) for parameter in parameters[skipped:]
    ]


def _field(
    fn: Function, parameter: inspect.Parameter, hints: dict[str, Any]
) -> tuple[str, Any] | tuple[str, Any, Any]:
    where = f"{fn.__qualname__}, parameter {parameter.name}"
    if parameter.kind not in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    ):
        raise TypeError(f"{where}: must be one that can be passed by its name")
    if parameter.name not in hints:
        raise TypeError(f"{where}: has no annotation; the schema is made from it")
    if parameter.default is inspect.Parameter.empty:
        return parameter.name, hints[parameter.name]
    return parameter.name, hints[parameter.name], parameter.default


def _members(value: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def _caller(
    fn: Function, operation_type: type | None
) -> Callable[[Operation, dict[str, Any]], Awaitable[Any]]:
    async def after_dispatch(operation: Operation, members: dict[str, Any]) -> Any:  # noqa: ANN401
        await operation.dispatch()
        return await _called(fn, **members)

    async def with_operation(operation: Operation, members: dict[str, Any]) -> Any:  # noqa: ANN401
        blocks = operation_type is BlockingOperation
        given = BlockingOperation(operation) if blocks else operation
        return await _called(fn, given, **members)

    return after_dispatch if operation_type is None else with_operation


async def _called(fn: Function, *args: object, **members: Any) -> Any:  # noqa: ANN401 - of a function of anybody's
    call = partial(fn, *args, **members)
    return await (call() if inspect.iscoroutinefunction(fn) else in_thread(call))


def _result(value: object) -> ToolResult:
    if isinstance(value, ToolResult):
        return attrs.evolve(value, text=_bounded(value.text))
    if value is None:
        return ToolResult("done")
    if isinstance(value, str):
        return ToolResult(_bounded(value))
    return ToolResult(_bounded(msgspec.json.encode(value).decode()))


def _bounded(text: str) -> str:
    return cut_middle(safe_text(text), MAX_RESULT_CHARS)
