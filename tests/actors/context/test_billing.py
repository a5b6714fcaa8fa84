"""What compactions ask models for is counted: in usage, in money, and in budgets."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from kit.rehearsal import Probe, open_stage, replies
from kit.run_ports import change_run_ports, set_cost
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Fail, Halt, Say, Use
from greenroom.engine import Budget, Price, Prices, Reply, TurnFailedError
from greenroom.storage import open_reader

LONG = "word " * 400
TOO_LONG = [Fail("prompt is too long", status=400)]
SUMMARY = [Say("## Goal\nkeep the door shut"), Use(500, 20), Halt()]
UNTOLD = [Say("## Goal\nkeep the door shut"), Halt()]
DONE = [Say("done"), Use(60, 2), Halt()]


def said(number: int) -> list[Any]:
    return [Say(f"answer {number} {LONG}"), Use(10, 1), Halt()]


async def talk(stage: Any, turns: int) -> None:
    for number in range(turns):
        await stage.session.prompt(f"ask {number} {LONG}")


def press(stage: Any) -> None:
    """Have the next turn compact first."""
    loaded = stage.session._sessions.loaded(stage.session.id)
    assert loaded is not None
    loaded.session.history.pressed = True


def tokens_of(stage: Any) -> tuple[int | None, int | None]:
    reader = open_reader(stage.state)
    try:
        row = reader.session(stage.session.id)
    finally:
        reader.close()
    assert row is not None
    return row.input_tokens, row.output_tokens


async def asked_for(stage: Any, text: str) -> Any:
    """The question that a prompt stops at, which ends with it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.session.prompt, text)
        await wait_all_tasks_blocked()
        (asked,) = await stage.session.interactions()
        await stage.session.answer(asked.id, Reply("stop"))
    assert asked.excess is not None
    return asked.excess


async def test_what_a_turn_compacts_is_in_its_usage_and_its_price(tmp_path):
    script = replies(said(0), said(1), TOO_LONG, SUMMARY, DONE)
    async with open_stage(tmp_path, script) as stage:
        set_cost(stage, Prices({"default": Price(input=1e6, output=1e6)}).cost)
        await talk(stage, 2)
        result = await stage.session.prompt("next")
        assert result.text == "done"
        usage = result.usage
        assert usage is not None
        assert (usage.input, usage.output) == (560, 22)
        assert result.cost == pytest.approx(582.0)
        # Once: the session's row has it from the turn, not from the call as well.
        assert tokens_of(stage) == (20 + 560, 2 + 22)


async def test_a_turn_that_compacts_beyond_its_budget_asks(tmp_path):
    call = [Call("probe", {"n": 1}), Use(60, 2), Halt("tool_use")]
    script = replies(said(0), said(1), TOO_LONG, SUMMARY, call, DONE)
    async with open_stage(tmp_path, script, Probe()) as stage:
        await talk(stage, 2)
        await stage.session.configure(turn_budget=Budget(tokens=100))
        excess = await asked_for(stage, "next")
        assert (excess.scope, excess.spent) == ("turn", 582)


async def test_nothing_is_compacted_for_a_turn_that_may_ask_nothing(tmp_path):
    script = replies(said(0), said(1), SUMMARY, DONE)
    async with open_stage(tmp_path, script) as stage:
        await talk(stage, 2)
        await stage.session.configure(session_budget=Budget(tokens=20))
        press(stage)
        excess = await asked_for(stage, "next")
        assert (excess.scope, excess.spent) == ("session", 22)
        assert len(stage.provider.requests) == 2


@pytest.mark.parametrize("reopened", [False, True])
async def test_what_the_user_compacts_is_the_sessions(tmp_path, reopened):
    script = replies(said(0), said(1), SUMMARY, DONE)
    async with open_stage(tmp_path, script) as stage:
        set_cost(stage, Prices({"default": Price(input=1e6, output=1e6)}).cost)
        await talk(stage, 2)
        done = await stage.session.compact()
        assert (done.spent.tokens, done.spent.money) == (520, pytest.approx(520.0))
        assert tokens_of(stage) == (520, 22)
        await stage.session.configure(session_budget=Budget(tokens=540))
        if reopened:
            await stage.session.close()
        excess = await asked_for(stage, "next")
        assert (excess.scope, excess.kind, excess.spent) == ("session", "tokens", 542)
        assert len(stage.provider.requests) == 3


@pytest.mark.parametrize("reopened", [False, True])
async def test_what_a_turn_has_compacted_counts_once_for_its_session(
    tmp_path, reopened
):
    script = replies(said(0), said(1), TOO_LONG, SUMMARY, DONE, DONE)
    async with open_stage(tmp_path, script) as stage:
        await talk(stage, 2)
        await stage.session.prompt("next")
        await stage.session.configure(session_budget=Budget(tokens=600))
        if reopened:
            await stage.session.close()
        excess = await asked_for(stage, "once more")
        assert (excess.scope, excess.spent) == ("session", 22 + 582)


@pytest.mark.parametrize("reopened", [False, True])
async def test_what_nobody_counted_is_not_nothing(tmp_path, reopened):
    script = replies(said(0), said(1), UNTOLD, DONE)
    async with open_stage(tmp_path, script) as stage:
        await talk(stage, 2)
        done = await stage.session.compact()
        assert done.spent.unknown == {"tokens", "money"}
        await stage.session.configure(session_budget=Budget(tokens=99_000))
        if reopened:
            await stage.session.close()
        excess = await asked_for(stage, "next")
        assert (excess.scope, excess.spent) == ("session", None)


#### Before there is a run


async def test_what_is_compacted_before_a_run_is_in_its_usage_and_its_price(tmp_path):
    async with open_stage(tmp_path, replies(said(0), said(1), SUMMARY, DONE)) as stage:
        set_cost(stage, Prices({"default": Price(input=1e6, output=1e6)}).cost)
        await talk(stage, 2)
        press(stage)
        result = await stage.session.prompt("next")
        usage = result.usage
        assert usage is not None
        assert (usage.input, usage.output) == (560, 22)
        assert result.cost == pytest.approx(582.0)
        assert tokens_of(stage) == (20 + 560, 2 + 22)


async def wait(*_: Any) -> None:
    await trio.sleep_forever()


async def fail(*_: Any) -> None:
    raise RuntimeError("it is broken")


@pytest.mark.parametrize("reopened", [False, True])
async def test_a_turn_that_is_cancelled_before_its_run_has_compacted_all_the_same(
    tmp_path, reopened
):
    async with open_stage(tmp_path, replies(said(0), said(1), SUMMARY)) as stage:
        set_cost(stage, Prices({"default": Price(input=1e6, output=1e6)}).cost)
        await talk(stage, 2)
        press(stage)
        change_run_ports(stage, contribute=wait)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "next")
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        metadata = (await stage.session.messages())[-1].metadata
        assert (metadata.run_id, metadata.request_seq) == (None, 0)
        assert (metadata.total_tokens, metadata.cost) == (520, pytest.approx(520.0))
        assert tokens_of(stage) == (20 + 500, 2 + 20)
        change_run_ports(stage, contribute=None)
        await stage.session.configure(session_budget=Budget(tokens=540))
        if reopened:
            await stage.session.close()
        excess = await asked_for(stage, "once more")
        assert (excess.scope, excess.spent) == ("session", 22 + 520)


@pytest.mark.parametrize("reopened", [False, True])
async def test_a_turn_that_never_began_has_compacted_all_the_same(tmp_path, reopened):
    async with open_stage(tmp_path, replies(said(0), said(1), SUMMARY)) as stage:
        await talk(stage, 2)
        press(stage)
        change_run_ports(stage, contribute=fail)
        with pytest.raises(TurnFailedError, match="it is broken"):
            await stage.session.prompt("next")
        (row,) = await stage.session.inputs()
        await stage.session.delete_input(row.id)
        change_run_ports(stage, contribute=None)
        await stage.session.configure(session_budget=Budget(tokens=540))
        if reopened:
            await stage.session.close()
        excess = await asked_for(stage, "once more")
        assert (excess.scope, excess.spent) == ("session", 22 + 520)
