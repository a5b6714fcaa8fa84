"""Tool facts: behind their message, only of calls that have ended, never in the way."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
import pytest
import trio
from kit.rehearsal import Probe, Stage, calls_of, open_stage, replies

from greenroom.actors.tools import Question
from greenroom.protocol import Fact, QuestionOption, Reply, sha256_hex
from greenroom.storage import RefusedFactError
from greenroom.testing import Call, Halt, Say

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}, id="c1"), Halt("tool_use")]
TWO = [*ASK[:1], Call("nothing", {}, id="c2"), Halt("tool_use")]
NAMES = ["tool/called", "tool/settled"]


@attrs.define(eq=False)
class NoToolFacts:
    """A session's record on a tape that takes no tool facts."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def append(self, facts: Any, settles: Any = (), **more: Any) -> None:
        if any(fact.name in NAMES for fact in facts):
            raise RefusedFactError("no tool facts today")
        await self.inner.append(facts, settles, **more)


def facts_of(stage: Stage) -> list[Fact]:
    return [entry.fact for entry in stage.tape() if entry.fact.name in NAMES]


@pytest.mark.contract("TAP-06")
async def test_calls_that_ended_have_call_and_result_behind_their_message(tmp_path):
    async with open_stage(tmp_path, replies(TWO, DONE), Probe()) as stage:
        turn = await stage.session.prompt("go")
        facts = facts_of(stage)
        payloads = [msgspec.json.decode(fact.payload) for fact in facts]
        assert [fact.kind for fact in facts] == ["tool_call", "tool_result"] * 2
        assert [p["toolCallId"] for p in payloads] == ["c1", "c1", "c2", "c2"]
        assert [p["isError"] for p in payloads[1::2]] == [False, True]
        responses = [call.response for call in calls_of(turn.message)]
        assert [p["response"] for p in payloads[1::2]] == responses
        for fact in facts:
            assert fact.provenance_key.endswith(sha256_hex(fact.payload))
        first = stage.names().index("tool/called")
        behind = stage.tape()[first - 1].fact
        assert behind.name == "message/recorded"
        assert all(f'"callId":"{call}"' in behind.payload for call in ("c1", "c2"))


@pytest.mark.contract("TAP-06")
async def test_a_call_that_waits_has_none_until_it_ends(tmp_path):
    question = Question("Which?", "pick", (QuestionOption("a"), QuestionOption("b")))
    probe = Probe(question=question)
    async with (
        open_stage(tmp_path, replies(ASK, DONE), probe) as stage,
        trio.open_nursery() as nursery,
        stage.session.follow() as events,
    ):
        nursery.start_soon(stage.session.prompt, "go")
        async for _ in events:
            if waiting := await stage.session.interactions():
                break
        assert facts_of(stage) == []
        await stage.session.answer(waiting[0].id, Reply("a"))
        async for _ in events:
            if facts_of(stage):
                break
        assert [fact.name for fact in facts_of(stage)] == NAMES


@pytest.mark.contract("TAP-06")
async def test_a_tape_that_takes_no_tool_facts_is_a_warning(tmp_path, caplog):
    async with open_stage(tmp_path, replies(TWO, DONE), Probe()) as stage:
        loaded = stage.session._sessions.loaded(stage.session.id)
        assert loaded is not None
        ports = loaded.session.ports
        record: Any = NoToolFacts(ports.record)
        loaded.session.ports = attrs.evolve(ports, record=record)
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.text) == ("completed", "done")
        assert all(call.response for call in calls_of(turn.message))
        assert facts_of(stage) == []
        assert "have no tool facts: no tool facts today" in caplog.text
