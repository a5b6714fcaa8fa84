from __future__ import annotations

import gc
import weakref

import pytest
import trio
from hypothesis import given, settings, strategies as st
from kit.rehearsal import Probe, calls_of, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Say
from greenroom.actors.tools import ToolRefused, ToolResult
from greenroom.protocol import (
    AssistantMessage,
    Deny,
    DispatchCommitted,
    Grant,
    ToolMessage,
    ToolOutcome,
)

DONE = [Say("done"), Halt()]
TWO = [Call("one", {"n": 1}), Call("two", {"n": 2}), Halt("tool_use")]


def overlapping(name, seen, gate, *, read_only=True, parallel_safe=True):
    """A probe that waits until both run, if both may."""

    async def body(arguments, operation):
        await operation.dispatch()
        seen.append(name)
        if len(seen) == 2:
            gate.set()
        with trio.move_on_after(0.05):
            await gate.wait()
        return ToolResult(f"result of {name}")

    return Probe(name=name, read_only=read_only, parallel_safe=parallel_safe, body=body)


@pytest.mark.contract("TOL-06")
@pytest.mark.parametrize(
    ("mode", "names", "read_only", "safe", "overlap"),
    [
        ("full_access", ("one", "two"), True, True, True),
        ("auto_approve", ("one", "two"), True, True, False),
        ("default", ("one", "two"), True, True, False),
        ("full_access", ("one", "two"), False, True, False),
        ("full_access", ("one", "two"), True, False, False),
        ("full_access", ("one", "nobody"), True, True, False),
        ("full_access", ("one",), True, True, False),
    ],
)
async def test_calls_overlap_only_when_every_condition_holds(
    tmp_path, autojump_clock, mode, names, read_only, safe, overlap
):
    seen, gate = [], trio.Event()
    tools = [
        overlapping(name, seen, gate, read_only=read_only, parallel_safe=safe)
        for name in ("one", "two")
    ]
    calls = [Call(name, {"n": n}) for n, name in enumerate(names)]
    script = replies([*calls, Halt("tool_use")], DONE)
    async with open_stage(tmp_path, script, *tools, permission_mode=mode) as stage:
        started = trio.current_time()
        turn = await stage.session.prompt("go")
        # Alone, each waits for a companion that does not come.
        alone = trio.current_time() - started >= 0.05
        assert alone != overlap
        called = [call.call_id for call in calls_of(turn.message)]
        results = [
            message.call_id
            for message in stage.provider.requests[1].messages
            if isinstance(message, ToolMessage)
        ]
        assert results == called


@pytest.mark.contract("TOL-06")
async def test_results_are_in_the_order_of_the_calls_whoever_is_first(tmp_path):
    release, order = trio.Event(), []

    async def slow(arguments, operation):
        await operation.dispatch()
        await release.wait()
        order.append("one")
        return ToolResult("first")

    async def quick(arguments, operation):
        await operation.dispatch()
        order.append("two")
        release.set()
        return ToolResult("second")

    one = Probe(name="one", read_only=True, parallel_safe=True, body=slow)
    two = Probe(name="two", read_only=True, parallel_safe=True, body=quick)
    async with open_stage(
        tmp_path, replies(TWO, DONE), one, two, permission_mode="full_access"
    ) as stage:
        turn = await stage.session.prompt("go")
        assert order == ["two", "one"]
        assert [c.response for c in calls_of(turn.message)] == ["first", "second"]


async def test_an_early_outcome_is_durable_while_its_sibling_still_runs(tmp_path):
    gate = trio.Event()
    one = Probe(name="one", read_only=True, parallel_safe=True, gate=gate)
    two = Probe(name="two", read_only=True, parallel_safe=True)
    async with (
        open_stage(
            tmp_path, replies(TWO, DONE), one, two, permission_mode="full_access"
        ) as stage,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stage.session.prompt, "go")
        await wait_all_tasks_blocked()
        journal = stage.journal()
        assert len([r for r in journal if isinstance(r, DispatchCommitted)]) == 2
        (outcome,) = [r for r in journal if isinstance(r, ToolOutcome)]
        assert outcome.operation == two.operations[0].id
        gate.set()


KINDS = [
    "ok",
    "raises",
    "refused",
    "unknown",
    "malformed",
    "asks",
    "cut",
    "idle",
]


def make_tools():
    async def raises(arguments, operation):
        await operation.dispatch()
        raise ValueError("no")

    async def idle(arguments, operation):
        return ToolResult("nothing")

    return [
        Probe(name="ok"),
        Probe(name="raises", body=raises),
        Probe(name="refused", refuse=ToolRefused("no")),
        Probe(name="asks", permission="?"),
        Probe(name="idle", body=idle),
    ]


def cue(kind: str, number):
    names = {"unknown": "nobody", "malformed": "ok", "cut": "ok"}
    name = names.get(kind, kind)
    arguments = "{" if kind == "malformed" else {"n": number}
    same_id = "x" if number % 2 else ""
    return Call(name, arguments, id=same_id, cut=kind == "cut")


def assert_paired(messages):
    waiting: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert waiting
            assert message.call_id == waiting.pop(0)
        else:
            assert not waiting
            if isinstance(message, AssistantMessage):
                waiting = [call.id for call in message.calls]
    assert not waiting


@pytest.mark.contract("TOL-05")
@settings(max_examples=40)
@given(
    batches=st.lists(
        st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), min_size=1, max_size=3
    ),
    mode=st.sampled_from(["default", "auto_approve", "full_access"]),
    stops=st.lists(st.sampled_from(["tool_use", "max_tokens"]), min_size=3, max_size=3),
    answers=st.lists(st.booleans(), min_size=12, max_size=12),
    cancel_at=st.integers(0, 12),
)
def test_every_call_has_exactly_one_result_in_order_before_the_next_request(
    tmp_path_factory, batches, mode, stops, answers, cancel_at
):
    tmp_path = tmp_path_factory.mktemp("stage")

    async def main():
        rounds = [
            [*[cue(kind, n) for n, kind in enumerate(batch)], Halt(stop)]
            for batch, stop in zip(batches, stops, strict=False)
        ]
        script = replies(*rounds, DONE, DONE)
        async with open_stage(
            tmp_path, script, *make_tools(), permission_mode=mode
        ) as stage:
            # The second turn goes on where the first one left the script.
            await play(stage, answers, cancel_at)
            await play(stage, answers, cancel_at)
            for request in stage.provider.requests:
                assert_paired(request.messages)
            for message in await stage.session.messages():
                assert all(call.response is not None for call in calls_of(message))

    trio.run(main)


async def play(stage, answers, cancel_at):
    """Answer what is asked; at the n-th question cancel instead."""
    async with trio.open_nursery() as nursery:
        done = trio.Event()

        async def prompt():
            await stage.session.prompt("go")
            done.set()

        nursery.start_soon(prompt)
        for number, grant in enumerate(answers):
            await wait_all_tasks_blocked()
            asked = await stage.session.interactions()
            if done.is_set() or not asked:
                return
            if number == cancel_at:
                await stage.session.cancel()
                return
            await stage.session.answer(asked[0].id, Grant() if grant else Deny())
        await wait_all_tasks_blocked()
        if not done.is_set():
            await stage.session.cancel()


@pytest.mark.contract("RUN-02")
async def test_nothing_temporary_of_a_run_outlives_it(tmp_path):
    seen = {}

    async def look(arguments, operation):
        await operation.dispatch()
        loaded = stage.session._sessions.loaded(stage.session.id)
        active = loaded.session.turn.active  # pyright: ignore[reportOptionalMemberAccess]
        assert active is not None
        assert active.plan.run_id == operation.id.run_id
        assert active.plan.session_id == stage.session.id
        assert active.draft.round == 1
        assert active.draft.request_seq == 1
        seen["active"] = weakref.ref(active)
        seen["draft"] = weakref.ref(active.draft)
        seen["operation"] = weakref.ref(operation)
        return ToolResult("ok")

    ask = [Call("probe", {}), Halt("tool_use")]
    probe = Probe(body=look)
    async with open_stage(tmp_path, replies(ask, DONE), probe) as stage:
        await stage.session.prompt("go")
        await wait_all_tasks_blocked()
        probe.operations.clear()
        loaded = stage.session._sessions.loaded(stage.session.id)
        assert loaded is not None
        assert loaded.session.turn is None
        assert not [info for info in stage.engine.tree() if "run-" in info.path]
        gc.collect()
        assert {name: ref() for name, ref in seen.items()} == {
            "active": None,
            "draft": None,
            "operation": None,
        }
