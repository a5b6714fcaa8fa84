"""Tools made of functions: schema, dispatch, threads, results."""

from __future__ import annotations

import threading
from typing import Annotated

import msgspec
import pytest
import trio
from kit.operations import FakeOperation, make_context

from greenroom.actors.tools import (
    Needs,
    Operation,
    PermissionRequired,
    ToolRefused,
    ToolResult,
    tool,
)


@tool(read_only=True, kind="search")
async def weather(
    city: Annotated[str, msgspec.Meta(description="a city", min_length=1)],
    days: int = 1,
) -> str:
    """Tell the weather."""
    return f"{city}: sun for {days}"


def test_signature_and_docstring_become_the_definition():
    assert weather.definition.name == "weather"
    assert weather.definition.description == "Tell the weather."
    assert weather.definition.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "a city", "minLength": 1},
            "days": {"type": "integer", "default": 1},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert weather.read_only
    assert weather.parallel_safe


async def test_dispatch_comes_before_the_body(tmp_path):
    operation = FakeOperation(make_context(tmp_path))

    @tool
    async def touch(name: str) -> None:
        """Make a file."""
        (operation.context.workspace / name).touch()

    result = await touch.run({"name": "x"}, operation)
    assert operation.order == ["dispatch"]
    assert result == ToolResult("done")
    assert not touch.read_only
    assert not touch.parallel_safe


async def test_an_effect_before_dispatch_is_noticed_by_the_fake(tmp_path):
    @tool
    async def hasty(operation: Operation) -> None:
        """Act first, ask later."""
        (operation.context.workspace / "x").touch()
        await operation.dispatch()

    with pytest.raises(AssertionError, match="a file changed before dispatch"):
        await hasty.run({}, FakeOperation(make_context(tmp_path)))


async def test_bad_arguments_are_refused_at_both_doors_without_dispatch(tmp_path):
    operation = FakeOperation(make_context(tmp_path))
    with pytest.raises(ToolRefused, match=r"\$.days"):
        await weather.precheck({"city": "x", "days": True}, operation.context)
    with pytest.raises(ToolRefused, match="missing required field `city`"):
        await weather.run({}, operation)
    assert operation.order == []


async def test_a_dispatch_that_raises_keeps_the_body_from_running(tmp_path):
    ran = []

    @tool
    async def effect() -> None:
        """Have an effect."""
        ran.append(1)

    def refuse():
        raise RuntimeError("journal")

    operation = FakeOperation(make_context(tmp_path), on_dispatch=refuse)
    with pytest.raises(RuntimeError, match="journal"):
        await effect.run({}, operation)
    assert not ran


async def test_a_function_that_takes_the_operation_dispatches_itself(tmp_path):
    @tool
    async def careful(operation: Operation, text: str) -> str:
        """Do nothing unless told to."""
        if text == "ask":
            raise PermissionRequired(Needs("do it", "careful", "other"))
        if text:
            await operation.dispatch()
            operation.progress(text)
        return operation.idempotency_key

    assert set(careful.definition.parameters["properties"]) == {"text"}
    silent = FakeOperation(make_context(tmp_path))
    assert (await careful.run({"text": ""}, silent)).text == silent.idempotency_key
    assert silent.order == []
    loud = FakeOperation(silent.context)
    await careful.run({"text": "x"}, loud)
    assert loud.order == ["dispatch", "progress"]
    with pytest.raises(PermissionRequired) as caught:
        await careful.run({"text": "ask"}, FakeOperation(silent.context))
    assert caught.value.needs.permission == "do it"


async def test_a_plain_function_runs_beside_the_loop_and_is_abandoned(tmp_path):
    started, stop, seen = threading.Event(), threading.Event(), []

    @tool
    def slow() -> str:
        """Block a thread, watching for the cancel."""
        started.set()
        stop.wait(5)
        try:
            trio.from_thread.check_cancelled()
        except trio.Cancelled:
            seen.append("told to stop")
            raise
        return "late"

    operation, results = FakeOperation(make_context(tmp_path)), []

    async def call():
        results.append(await slow.run({}, operation))

    try:
        with trio.fail_after(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await trio.to_thread.run_sync(started.wait)
                nursery.cancel_scope.cancel()
    finally:
        stop.set()
    with trio.fail_after(2):
        while not seen:
            await trio.lowlevel.checkpoint()
    assert results == []


async def test_a_raising_function_raises_out_of_run(tmp_path):
    @tool
    def broken(x: int) -> float:
        """Divide."""
        return 1 / x

    with pytest.raises(ZeroDivisionError):
        await broken.run({"x": 0}, FakeOperation(make_context(tmp_path)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\x00\ud800b", "a��b"),
        (None, "done"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (3.5, "3.5"),
        (ToolResult("x\x00", is_error=True), "x�"),
    ],
)
async def test_what_a_function_returns_becomes_safe_text(tmp_path, value, text):
    @tool
    async def give() -> object:
        """Give it."""
        return value

    result = await give.run({}, FakeOperation(make_context(tmp_path)))
    assert result.text == text
    assert result.is_error == isinstance(value, ToolResult)


async def test_a_huge_result_is_cut_in_the_middle_and_says_so(tmp_path):
    @tool
    async def huge() -> str:
        """Say a lot."""
        return "a" + "x" * 1_000_000 + "z"

    text = (await huge.run({}, FakeOperation(make_context(tmp_path)))).text
    assert len(text) < 101_000
    assert text[0] == "a"
    assert text[-1] == "z"
    assert "900002 characters left out" in text


async def test_permission_is_a_sentence_or_a_function_of_the_arguments(tmp_path):
    context = make_context(tmp_path)

    def sentence(path: str) -> str | None:
        return None if path == "free" else f"delete\n{path}\x00"

    @tool(permission=sentence, kind="delete")
    async def delete(path: str) -> None:
        """Delete it."""

    @tool(permission="go on")
    async def go_on() -> None:
        """Go on."""

    for made, arguments, needs in [
        (delete, {"path": "x"}, Needs("delete x�", "delete", "delete")),
        (delete, {"path": "free"}, Needs(None, "delete", "delete")),
        (go_on, {}, Needs("go on", "go_on", "other")),
    ]:
        assert await made.precheck(arguments, context) == needs


def test_signatures_that_have_no_schema_are_refused_when_the_tool_is_made():
    async def bare(x):
        """No annotation."""

    async def many(*args: int):
        """Any number."""

    async def open_ended(**kwargs: int):
        """Any name."""

    async def foreign(x: threading.Event):
        """No JSON."""

    def plain(operation: Operation):
        """Can't await."""

    async def unknown(x: Nowhere):  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
        """Not there."""

    for fn, problem in [
        (bare, "no annotation"),
        (many, "by its name"),
        (open_ended, "by its name"),
        (foreign, "Event"),
        (plain, "must be async"),
        (unknown, "Nowhere"),
    ]:
        with pytest.raises(TypeError, match=problem):
            tool(fn)
