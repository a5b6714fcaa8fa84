"""Tools in another process: its death is told as what it is, and hides nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import attrs
import pytest
import trio
import trio.lowlevel
from kit.operations import FakeOperation
from kit.rehearsal import calls_of, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.tools import (
    HostDiedError,
    HostedTool,
    HostKeeper,
    ToolHostError,
    ToolRefused,
    ToolRegistry,
    ToolResult,
    offered,
)
from greenroom.protocol import DispatchCommitted, ToolDefinition, ToolOutcome
from greenroom.testing import Call, Halt, Say

OBJECT = {"type": "object"}


def definition(name, description="", parameters=OBJECT):
    return ToolDefinition(name, description, parameters)


#### A real helper process

HELPER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked["name"] == "hang":
        print("here", flush=True)
        sys.stdin.readline()
    else:
        print(json.dumps([asked["key"], asked["arguments"]]), flush=True)
"""


@attrs.define(eq=False)
class Helper:
    """A process that answers a line with a line, one at a time."""

    process: trio.Process
    heard: trio.Event = attrs.field(factory=trio.Event)

    async def call(self, name, arguments, idempotency_key):
        asked = {"name": name, "arguments": arguments, "key": idempotency_key}
        try:
            await self.process.stdin.send_all(json.dumps(asked).encode() + b"\n")  # pyright: ignore[reportOptionalMemberAccess]
            while True:
                line = await self.process.stdout.receive_some()  # pyright: ignore[reportOptionalMemberAccess]
                if line == b"here\n":
                    self.heard.set()
                    continue
                if not line:
                    raise HostDiedError("it closed its output")
                return ToolResult(line.decode().strip())
        except trio.BrokenResourceError as exc:
            raise HostDiedError("its input is closed") from exc

    async def aclose(self):
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            await stream.aclose()  # pyright: ignore[reportOptionalMemberAccess]
        await self.process.wait()


@attrs.define(eq=False)
class Office:
    """Starts helpers and knows them all."""

    helpers: list[Helper] = attrs.field(factory=list)

    async def open(self):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-I", "-S", "-c", HELPER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.helpers.append(Helper(process))
        return self.helpers[-1]


@pytest.mark.slow
@pytest.mark.contract("TOL-27")
async def test_a_helper_that_is_killed_in_a_call_is_named_and_the_next_call_works(
    tmp_path,
):
    office = Office()
    keeper = HostKeeper("the warehouse", office.open)
    tools = offered(keeper, [definition("hang"), definition("echo")]).tools
    rounds = replies(
        [Call("hang"), Halt("tool_use")],
        [Call("echo", {"n": 1}), Halt("tool_use")],
        [Say("done"), Halt()],
    )
    try:
        async with open_stage(
            tmp_path, rounds, *tools, permission_mode="full_access"
        ) as stage:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stage.session.prompt, "go")
                while not office.helpers:
                    await trio.lowlevel.checkpoint()
                await office.helpers[0].heard.wait()
                os.kill(office.helpers[0].process.pid, signal.SIGKILL)
            hang, echo = calls_of((await stage.session.messages())[1])
            assert hang.status == "error"
            assert "the tool host 'the warehouse' died" in (hang.response or "")
            assert echo.status == "success"
            dispatched = [
                r for r in stage.journal() if isinstance(r, DispatchCommitted)
            ]
            key, arguments = json.loads(echo.response or "")
            assert (key, arguments) == (
                dispatched[1].operation.idempotency_key,
                {"n": 1},
            )
            assert dispatched[0].target.server_name == "the warehouse"
            outcomes = [r for r in stage.journal() if isinstance(r, ToolOutcome)]
            assert [r.is_error for r in outcomes] == [True, False]
        assert keeper.starts == len(office.helpers) == 2
    finally:
        await keeper.aclose()
    assert all(h.process.returncode is not None for h in office.helpers)


#### A fake one


@attrs.define(eq=False)
class Fake:
    """A host that does as it is told."""

    gate: trio.Event | None = None
    dies: bool = False
    calls: list = attrs.field(factory=list)
    closed: int = 0

    async def call(self, name, arguments, idempotency_key):
        self.calls.append((name, arguments, idempotency_key))
        if self.gate is not None:
            await self.gate.wait()
        if self.dies:
            raise HostDiedError("gone")
        return ToolResult(f"{name} ran")

    async def aclose(self):
        self.closed += 1


def keeper_of(*hosts):
    left = [*hosts]

    async def start():
        await trio.lowlevel.checkpoint()
        host = left.pop(0)
        if isinstance(host, Exception):
            raise host
        return host

    return HostKeeper("shop", start)


async def run(tool, context):
    operation = FakeOperation(context)
    return operation, await tool.run({}, operation)


@pytest.mark.contract("TOL-27")
async def test_a_call_that_its_host_died_in_is_never_sent_again(context):
    dead, fresh = Fake(dies=True), Fake()
    keeper = keeper_of(dead, fresh)
    tool = HostedTool(keeper, definition("buy"))
    with pytest.raises(ToolHostError, match="'shop' died") as failed:
        await run(tool, context)
    assert failed.value.host == "shop"
    assert (len(dead.calls), len(fresh.calls), dead.closed) == (1, 0, 1)
    _, result = await run(tool, context)
    assert result.text == "buy ran"
    assert (len(fresh.calls), keeper.starts) == (1, 2)
    await keeper.aclose()
    assert fresh.closed == 1


async def test_calls_that_come_together_start_one_host(context):
    host = Fake(gate=trio.Event())
    keeper = keeper_of(host)
    tool = HostedTool(keeper, definition("buy"))
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(run, tool, context)
        await wait_all_tasks_blocked()
        assert (keeper.starts, len(host.calls)) == (1, 3)
        host.gate.set()  # pyright: ignore[reportOptionalMemberAccess]


async def test_calls_that_overlap_bury_a_dead_host_once(context):
    dead = Fake(dies=True, gate=trio.Event())
    keeper = keeper_of(dead, Fake())
    tool = HostedTool(keeper, definition("buy"))
    failures = []

    async def attempt():
        try:
            await run(tool, context)
        except ToolHostError as exc:
            failures.append(exc)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(attempt)
        nursery.start_soon(attempt)
        await wait_all_tasks_blocked()
        dead.gate.set()  # pyright: ignore[reportOptionalMemberAccess]
    assert len(failures) == 2
    assert dead.closed == 1
    _, result = await run(tool, context)
    assert result.text == "buy ran"


async def test_a_host_that_can_not_be_started_refuses_before_anything_happens(context):
    keeper = keeper_of(OSError("no such program"), Fake())
    tool = HostedTool(keeper, definition("buy"))
    operation = FakeOperation(context)
    with pytest.raises(ToolRefused, match="'shop' can't be started: no such program"):
        await tool.run({}, operation)
    assert operation.order == []
    _, result = await run(tool, context)
    assert result.text == "buy ran"


async def test_a_host_that_never_comes_up_is_given_up(context, autojump_clock):
    async def never():
        await trio.sleep_forever()
        raise AssertionError

    tool = HostedTool(HostKeeper("shop", never), definition("buy"))
    with pytest.raises(ToolRefused, match="it took more than 30 s"):
        await tool.run({}, FakeOperation(context))


async def test_the_user_is_asked_with_the_host_s_name_and_the_whole_call(context):
    needs = await HostedTool(keeper_of(), definition("buy")).precheck(
        {"fruit": "pear"}, context
    )
    assert needs.permission == "call buy of shop"
    assert '"fruit": "pear"' in needs.detail


#### Limits for each tool


@pytest.mark.contract("TOL-27")
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (definition("no spaces"), "must be 1 to 64 letters"),
        (definition(""), "must be 1 to 64 letters"),
        (definition("x", "d" * 20_000), "more than 16384"),
        (definition("x", parameters={"type": "array"}), "must be an object's"),
        (definition("x", parameters={}), "must be an object's"),
        (definition("x", parameters=OBJECT | {"x": "y" * 70_000}), "bytes, more than"),
        (definition("tool7"), "the same name"),
    ],
)
def test_of_151_tools_a_bad_one_hides_no_other(bad, why):
    good = [definition(f"tool{n}") for n in range(150)]
    offer = offered(keeper_of(), [*good[:75], bad, *good[75:]])
    assert [tool.definition for tool in offer.tools] == good
    (left_out,) = offer.left_out
    assert why in left_out.problem
    registry = ToolRegistry()
    registry.contribute(*offer.tools)
    assert len(registry.definitions()) == 150


def test_a_schema_that_nests_without_end_is_left_out():
    schema = {"type": "object"}
    for _ in range(100_000):
        schema = {"type": "object", "properties": schema}
    offer = offered(keeper_of(), [definition("deep", parameters=schema)])
    assert offer.tools == ()
    assert len(offer.left_out) == 1


def test_a_list_without_end_is_cut():
    offer = offered(keeper_of(), (definition(f"tool{n}") for n in range(1_500)))
    assert len(offer.tools) == 1_000
    assert offer.left_out[0].problem == "the host has more than 1000 tools"
