"""Budgets: what is used up pauses the turn and asks; nothing is ever killed."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from kit.rehearsal import Probe, Stage, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Say, Use
from greenroom.engine import (
    Budget,
    Deny,
    Grant,
    Price,
    Prices,
    Reply,
    ToolResult,
    TurnRefusedError,
)
from greenroom.protocol import (
    ActionBlock,
    InteractionError,
    InteractionSettled,
    Other,
    RunTerminal,
    StreamCompleted,
)

CALL = [Use(6, 2), Call("probe", {"n": 1}), Halt("tool_use")]
DONE = [Say("done"), Use(6, 2), Halt()]
SILENT = [Call("probe", {"n": 1}), Halt("tool_use")]
PRICE = Price(input=1_000_000.0, output=2_000_000.0)


@attrs.define(eq=False)
class Asked:
    """A prompt in the background, and what it stops to ask."""

    stage: Stage
    result: Any = None

    async def run(self, text="go"):
        self.result = await self.stage.session.prompt(text)

    async def question(self):
        await wait_all_tasks_blocked()
        (asked,) = await self.stage.session.interactions()
        return asked


def excess_of(block):
    assert block.excess is not None
    return block.excess


def set_price(stage, price):
    session = stage.session._sessions.loaded(stage.session.id).session
    prices = Prices({"default": price} if price else {})
    session.ports = attrs.evolve(session.ports, cost=prices.cost)


def terminals(stage):
    return [
        (r.outcome, r.stop_reason)
        for r in stage.journal()
        if isinstance(r, RunTerminal)
    ]


async def test_a_used_up_budget_pauses_before_the_next_request_and_asks(tmp_path):
    probe = Probe()
    async with open_stage(tmp_path, replies(CALL, DONE), probe) as stage:
        await stage.session.configure(turn_budget=Budget(tokens=8))
        turn = Asked(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            asked = await turn.question()
            assert asked.origin == "budget"
            assert [option.label for option in asked.options] == ["raise", "stop"]
            assert "8 tokens of 8 tokens" in asked.detail
            assert "8 tokens more" in asked.detail
            assert terminals(stage) == [("paused", "interaction")]
            (_, message) = await stage.session.messages()
            assert message.status == "pending"
            assert len(stage.provider.requests) == 1
            # What ran before has run, and is kept.
            assert probe.calls == [{"n": 1}]
            await stage.session.answer(asked.id, Reply("raise"))
        assert turn.result.text == "done"
        assert turn.result.usage.total == 16
        assert len(stage.provider.requests) == 2


@pytest.mark.parametrize("answer", [Reply("stop"), Deny(), Other()])
async def test_stopping_ends_the_turn_well_with_a_reason_of_its_own(tmp_path, answer):
    async with open_stage(tmp_path, replies(CALL), Probe()) as stage:
        await stage.session.configure(turn_budget=Budget(tokens=8))
        turn = Asked(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            asked = await turn.question()
            await stage.session.answer(asked.id, answer)
        result = turn.result
        assert (result.outcome, result.stop_reason) == ("completed", "budget")
        assert result.message.status == "sent"
        assert len(stage.provider.requests) == 1


async def test_other_answers_are_refused_and_the_budget_still_asks(tmp_path):
    async with open_stage(tmp_path, replies(CALL), Probe()) as stage:
        await stage.session.configure(turn_budget=Budget(tokens=8))
        turn = Asked(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            asked = await turn.question()
            for wrong in (Grant(), Reply("more, please")):
                with pytest.raises(InteractionError) as refused:
                    await stage.session.answer(asked.id, wrong)
                assert refused.value.code == "wrong_answer"
            assert (await turn.question()).id == asked.id
            await stage.session.cancel()


async def test_a_raised_limit_is_reached_again_at_the_next_amount(tmp_path):
    async with open_stage(tmp_path, replies(CALL, CALL, DONE), Probe()) as stage:
        await stage.session.configure(turn_budget=Budget(tokens=8))
        turn = Asked(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            first = await turn.question()
            await stage.session.answer(first.id, Reply("raise"))
            second = await turn.question()
            assert second.id != first.id
            assert (excess_of(second).limit, excess_of(second).spent) == (16, 16)
            await stage.session.answer(second.id, Reply("raise"))
        assert turn.result.error is None
        assert turn.result.text == "done"


async def test_a_session_budget_counts_all_turns_and_its_raises_last(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE, DONE)) as stage:
        await stage.session.configure(session_budget=Budget(tokens=8))
        await stage.session.prompt("one")
        turn = Asked(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            asked = await turn.question()
            assert excess_of(asked).scope == "session"
            # Not even one request of this turn was sent.
            assert len(stage.provider.requests) == 1
            await stage.session.answer(asked.id, Reply("raise"))
        third = Asked(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(third.run)
            asked = await third.question()
            assert (excess_of(asked).limit, excess_of(asked).spent) == (16, 16)
            await stage.session.answer(asked.id, Reply("stop"))
        assert third.result.stop_reason == "budget"


async def test_a_session_budget_is_the_same_for_the_next_engine(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.configure(session_budget=Budget(tokens=8))
        await stage.session.prompt("one")
        session_id = stage.session.id
    async with open_stage(tmp_path, replies(DONE), session_id=session_id) as stage:
        turn = Asked(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            asked = await turn.question()
            assert excess_of(asked).spent == 8
            await stage.session.answer(asked.id, Reply("raise"))
        assert turn.result.text == "done"


async def test_money_is_counted_where_the_price_is_known(tmp_path):
    async with open_stage(tmp_path, replies(CALL, DONE), Probe()) as stage:
        set_price(stage, PRICE)
        await stage.session.configure(turn_budget=Budget(money=10.0))
        turn = Asked(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            asked = await turn.question()
            assert excess_of(asked).spent == pytest.approx(10.0)
            await stage.session.answer(asked.id, Reply("raise"))
        assert turn.result.cost == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("first", "price", "budget"),
    [
        (CALL, None, Budget(money=1_000.0)),
        (SILENT, PRICE, Budget(money=1_000.0)),
        (SILENT, PRICE, Budget(tokens=1_000)),
    ],
)
async def test_what_can_not_be_watched_asks_once_and_costs_nothing_known(
    tmp_path, first, price, budget
):
    async with open_stage(tmp_path, replies(first, CALL, DONE), Probe()) as stage:
        set_price(stage, price)
        await stage.session.configure(turn_budget=budget)
        turn = Asked(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            asked = await turn.question()
            assert excess_of(asked).spent is None
            assert "unknown" in asked.detail
            await stage.session.answer(asked.id, Reply("raise"))
        assert turn.result.text == "done"
        assert turn.result.cost is None


async def test_time_counts_while_the_turn_works_and_not_while_it_waits(
    tmp_path, autojump_clock
):
    async def slow(arguments, operation):
        await operation.dispatch()
        await trio.sleep(6)
        return ToolResult("ok")

    probe = Probe(body=slow)
    async with open_stage(tmp_path, replies(CALL, CALL, DONE), probe) as stage:
        await stage.session.configure(turn_budget=Budget(seconds=5.0))
        turn = Asked(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            await trio.sleep(6.5)
            (asked,) = await stage.session.interactions()
            assert excess_of(asked).spent == pytest.approx(6.0)
            # Nobody works while nobody answers.
            await trio.sleep(3_600)
            await stage.session.answer(asked.id, Reply("raise"))
            await trio.sleep(6.5)
            (asked,) = await stage.session.interactions()
            assert excess_of(asked).spent == pytest.approx(12.0)
            await stage.session.answer(asked.id, Reply("stop"))
        assert turn.result.stop_reason == "budget"


async def test_the_question_about_a_budget_is_settled_once(tmp_path):
    async with open_stage(tmp_path, replies(CALL, DONE), Probe()) as stage:
        await stage.session.configure(turn_budget=Budget(tokens=8))
        turn = Asked(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            asked = await turn.question()
            async with stage.session.follow(after=0) as feed:
                await stage.session.answer(asked.id, Reply("raise"))
                ends = []
                async for event in feed:
                    if isinstance(event, InteractionSettled):
                        ends.append((event.interaction_id, event.end))
                    if isinstance(event, StreamCompleted):
                        break
        assert ends == [(asked.id, "answered")]
        (block,) = [b for b in turn.result.message.blocks if isinstance(b, ActionBlock)]
        assert (block.status, block.answer, block.end) == (
            "success",
            "raise",
            "answered",
        )


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"money": -1.0}, {"seconds": 0.0}])
async def test_a_budget_that_is_none_is_refused(tmp_path, wrong):
    async with open_stage(tmp_path, replies()) as stage:
        with pytest.raises(TurnRefusedError) as refused:
            await stage.session.configure(turn_budget=Budget(**wrong))
        assert refused.value.code == "wrong_setting"
