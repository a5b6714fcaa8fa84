"""A compaction that the user asked for, beside everything else that may happen."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from kit.rehearsal import open_stage, replies
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.providers import Fail, Halt, Hang, RehearsalProvider, Say
from greenroom.actors.sessions import TurnFailedError, TurnRefusedError
from greenroom.engine import SlidingWindow
from greenroom.protocol import CompactionChanged

LONG = "word " * 400
SUMMARY = [Say("## Goal\nkeep the door shut"), Halt()]


def said(number: int) -> list[Any]:
    return [Say(f"answer {number} {LONG}"), Halt()]


DONE = [Say("done"), Halt()]


def anchors(stage: Any) -> list[tuple[str, dict[str, Any]]]:
    return [
        (entry.fact.name, json.loads(entry.fact.payload))
        for entry in stage.tape()
        if entry.fact.name.startswith(("compaction/", "summary/"))
        and entry.fact.kind == "anchor"
    ]


def last_sent(stage: Any) -> str:
    return json.dumps([str(m) for m in stage.provider.requests[-1].messages])


async def talk(stage: Any, turns: int) -> None:
    for number in range(turns):
        await stage.session.prompt(f"ask {number} {LONG}")


@attrs.define(eq=False)
class HeldSummaries:
    """A provider whose summaries wait at a gate."""

    inner: RehearsalProvider
    gate: trio.Event = attrs.field(factory=trio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @asynccontextmanager
    async def stream(self, request: Any, **named: Any) -> AsyncIterator[Any]:
        if request.tool_choice == "none":
            await self.gate.wait()
        async with self.inner.stream(request, **named) as events:
            yield events


async def until_asked(stage: Any, requests: int) -> None:
    while len(stage.provider.requests) < requests:
        await wait_all_tasks_blocked()


@pytest.mark.contract("CTX-25")
async def test_compacting_keeps_no_tail_and_undo_brings_all_of_it_back(tmp_path):
    script = replies(said(0), said(1), SUMMARY, DONE, DONE)
    async with open_stage(tmp_path, script) as stage:
        await talk(stage, 2)
        before = stage.tape()
        done = await stage.session.compact("the door")
        assert done.outcome == "summarized"
        assert done.after < done.before
        ((name, state),) = anchors(stage)
        assert (name, state["cursorOrderSeq"]) == ("compaction/manual", 5)
        assert "the door" in last_sent(stage)
        await stage.session.prompt("next")
        assert "answer 1" not in last_sent(stage)
        assert "keep the door shut" in last_sent(stage)
        assert await stage.session.undo_compaction()
        await stage.session.prompt("next")
        assert "answer 1" in last_sent(stage)
        assert "keep the door shut" not in last_sent(stage)
        assert not await stage.session.undo_compaction()
        assert stage.tape()[: len(before)] == before


async def test_undo_goes_back_one_compaction_at_a_time(tmp_path):
    stories = ["story one", "story two"]
    first, second = ([Say(story), Halt()] for story in stories)
    script = replies(said(0), first, said(1), second, DONE, DONE, DONE)
    async with open_stage(tmp_path, script) as stage:
        await talk(stage, 1)
        await stage.session.compact()
        await stage.session.prompt(f"ask 1 {LONG}")
        await stage.session.compact()
        seen = []
        for _ in range(3):
            await stage.session.prompt("next")
            seen.append([w for w in stories if w in last_sent(stage)])
            await stage.session.undo_compaction()
            await stage.session.close()
        assert seen == [["story two"], ["story one"], []]


async def test_watchers_see_each_compaction_with_before_and_after(tmp_path):
    script = replies(said(0), said(1), SUMMARY)
    async with open_stage(tmp_path, script) as stage:
        await talk(stage, 2)
        async with stage.session.follow() as feed:
            done = await stage.session.compact()
            await stage.session.undo_compaction()
            changed = []
            async for event in feed:
                if isinstance(event, CompactionChanged):
                    changed.append(event)
                if len(changed) == 2:
                    break
        made, undone = changed
        assert (made.trigger, made.outcome) == ("manual", "summarized")
        assert (made.tokens_before, made.tokens_after) == (done.before, done.after)
        assert (made.cursor, undone.cursor) == (5, 1)
        assert undone.outcome == "undone"


@pytest.mark.parametrize(
    "reply", [[Fail("bad key", status=401)], [Halt()], [Say(LONG * 3), Halt()]]
)
async def test_without_a_good_summary_nothing_is_hidden(tmp_path, reply):
    async with open_stage(tmp_path, replies(said(0), reply, DONE)) as stage:
        await talk(stage, 1)
        done = await stage.session.compact()
        assert done.outcome == "unchanged"
        assert done.why
        assert anchors(stage) == []
        await stage.session.prompt("next")
        assert "answer 0" in last_sent(stage)


async def test_input_that_comes_meanwhile_has_its_turn_afterwards_in_order(
    tmp_path, autojump_clock: MockClock
):
    order: list[str] = []

    def script(request: Any) -> list[Any]:
        last = str(request.messages[-1])
        return SUMMARY if '"focus"' in last else [Say(f"re {last[-20:]}"), Halt()]

    provider = HeldSummaries(RehearsalProvider(script))
    async with open_stage(tmp_path, [], provider=provider) as stage:
        await talk(stage, 2)

        async def prompt(text: str) -> None:
            await stage.session.prompt(text)
            order.append(text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.compact)
            await wait_all_tasks_blocked()
            for text in ("one", "two"):
                nursery.start_soon(prompt, text)
                await wait_all_tasks_blocked()
            with pytest.raises(TurnRefusedError) as refused:
                await stage.session.compact()
            assert refused.value.code == "session_busy"
            provider.gate.set()
        assert order == ["one", "two"]
        messages: Any = await stage.session.messages()
        asked = [m.blocks[0].text for m in messages if m.role == "user"]
        assert asked[-2:] == ["one", "two"]
        assert [name for name, _ in anchors(stage)] == ["compaction/manual"]
        assert "keep the door shut" in last_sent(stage)


@pytest.mark.contract("CTX-24")
@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_a_compaction_that_is_stopped_changes_nothing(
    tmp_path, how, autojump_clock: MockClock
):
    async with open_stage(tmp_path, replies(said(0), [Hang()], DONE)) as stage:
        await talk(stage, 1)
        failed: list[Exception] = []

        async def compact() -> None:
            with pytest.raises(TurnFailedError) as caught:
                await stage.session.compact()
            failed.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact)
            await until_asked(stage, 2)
            await getattr(stage.session, how)()
        assert len(failed) == 1
        assert anchors(stage) == []
        assert (await stage.session.prompt("next")).text == "done"
        assert "answer 0" in last_sent(stage)


async def test_a_turn_that_goes_on_refuses_a_compaction(
    tmp_path, autojump_clock: MockClock
):
    async with open_stage(tmp_path, replies(said(0), [Hang()])) as stage:
        await talk(stage, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "long")
            await until_asked(stage, 2)
            for ask in (stage.session.compact, stage.session.undo_compaction):
                with pytest.raises(TurnRefusedError) as refused:
                    await ask()
                assert refused.value.code == "session_busy"
            await stage.session.cancel()


async def test_instructions_of_the_first_message_outlive_two_compactions(tmp_path):
    script = replies(said(0), SUMMARY, said(1), SUMMARY, DONE)
    async with open_stage(tmp_path, script) as stage:
        await stage.session.prompt("never touch X")
        await stage.session.compact()
        await stage.session.prompt(f"more {LONG}")
        await stage.session.compact()
        await stage.session.prompt("next")
        assert "never touch X" in last_sent(stage)


async def test_a_sliding_window_needs_no_model(tmp_path):
    script = replies(said(0), said(1), DONE)
    async with open_stage(tmp_path, script, compaction=SlidingWindow()) as stage:
        await talk(stage, 2)
        assert (await stage.session.compact()).outcome == "summarized"
        assert len(stage.provider.requests) == 2
        await stage.session.prompt("next")
        assert "- user: ask 1" in last_sent(stage)
