"""A run on a message that has one already goes on with its numbers (RUN-04)."""

from __future__ import annotations

import shutil
from contextlib import closing

import msgspec
import pytest
import trio
from kit.attempts import attempts_of
from kit.rehearsal import Probe, open_stage, replies, spy_on
from kit.run_ports import change_run_ports
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, End, Fail, Halt, Hang, Say
from greenroom.protocol import (
    AttemptTrace,
    Fact,
    FactKind,
    Grant,
    GreenroomError,
    RunId,
    RunTerminal,
    SourceType,
    StorageError,
    StreamCompleted,
    StreamFailed,
)
from greenroom.storage import open_reader

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]
RISK = [Call("risky", {"n": 2}), Halt("tool_use")]
TOO_LONG = [Fail("prompt is too long: 200000 tokens > 100000 maximum", status=400)]
OTHER_RUN = RunId("11111111-1111-4111-8111-111111111111")


class Shorter:
    async def begin(self, request):
        await trio.lowlevel.checkpoint()

    async def relieve(self, request, latch):
        await trio.lowlevel.checkpoint()

    async def recover(self, request, failure, latch):
        await trio.lowlevel.checkpoint()
        return msgspec.structs.replace(request, max_output_tokens=10)


async def paused(stage, nursery):
    """Prompt, and return the question that the turn stops at."""

    async def prompt():
        await stage.session.prompt("go")

    nursery.start_soon(prompt)
    await wait_all_tasks_blocked()
    (asked,) = await stage.session.interactions()
    return asked


async def answered(stage, asked):
    """Allow what was asked and return the message that the turn ends with."""
    async with stage.session.follow() as feed:
        await stage.session.answer(asked.id, Grant())
        async for event in feed:
            if isinstance(event, StreamCompleted | StreamFailed):
                return event.message
    raise AssertionError


def numbers(stage):
    return [(a["logicalRound"], a["requestSeq"]) for a in attempts_of(stage)]


@pytest.mark.contract("RUN-04")
async def test_rounds_requests_and_calls_go_on_after_a_pause(tmp_path):
    script = replies(TOO_LONG, ASK, RISK, DONE)
    probes = Probe(), Probe("risky", permission="?")
    async with open_stage(tmp_path, script, *probes) as stage:
        change_run_ports(stage, recovery=Shorter())
        async with trio.open_nursery() as nursery:
            asked = await paused(stage, nursery)
            message = await answered(stage, asked)
        # Two rounds with three requests, and then the next of each.
        assert numbers(stage) == [(1, 1), (1, 2), (2, 3), (3, 4)]
        assert attempts_of(stage)[-1]["requestOrigin"] == "resume"
        metadata = message.metadata
        assert (metadata.provider_rounds, metadata.request_seq) == (3, 4)
        assert metadata.tool_calls == 2


@pytest.mark.contract("RUN-04")
@pytest.mark.parametrize("source", ["manifest", "attempt", "trace", "metadata"])
async def test_the_next_request_is_after_whatever_got_furthest(tmp_path, source):
    furthest = {"manifest": 3, "attempt": 3, "trace": 3} | {source: 9}
    script = replies(RISK, DONE)
    async with open_stage(tmp_path, script, Probe("risky", permission="?")) as stage:
        record = spy_on(stage).inner
        async with trio.open_nursery() as nursery:
            asked = await paused(stage, nursery)
            turn = stage.session._sessions.loaded(stage.session.id).session.turn  # pyright: ignore[reportOptionalMemberAccess]
            assert turn is not None
            for name, key in (
                ("view/assembled", "manifest"),
                ("provider/attempt_completed", "attempt"),
            ):
                await record.append([_told(name, turn.message.id, furthest[key])])
            record.trace_soon(lambda: _trace(turn.message.id, furthest["trace"]))
            if source == "metadata":
                metadata = msgspec.structs.replace(turn.message.metadata, request_seq=9)
                turn.message = msgspec.structs.replace(turn.message, metadata=metadata)
            message = await answered(stage, asked)
        assert message.metadata.request_seq == 10
        assert numbers(stage)[-1] == (2, 10)


def _told(name, message_id, seq):
    return Fact(
        kind=FactKind.EVENT,
        name=name,
        source_type=SourceType.RUNTIME_EVENT,
        source_id=OTHER_RUN,
        source_seq=seq,
        payload=msgspec.json.encode(
            {"messageId": message_id, "requestSeq": seq, "logicalRound": 1}
        ).decode(),
    )


def _trace(message_id, seq):
    return AttemptTrace(
        run_id=OTHER_RUN,
        message_id=message_id,
        logical_round=1,
        request_seq=seq,
        physical_attempt=1,
        provider="p",
        model="m",
        created_at=1.0,
        payload="{}",
    )


@pytest.mark.contract("RUN-04")
@pytest.mark.parametrize("reply", [[Hang()], [Say("half"), End()]])
async def test_what_a_resumed_run_sent_is_known_after_its_crash(tmp_path, reply):
    # The run dies before it says anything of its own in the message.
    crashed = tmp_path / "crashed"
    probe = Probe("risky", permission="?")
    async with open_stage(tmp_path, replies(RISK, reply), probe) as stage:

        def crash(what):
            sent = len(stage.provider.requests)
            if what == RunTerminal.__name__ and sent == 2 and not crashed.exists():
                shutil.copytree(stage.state, crashed)

        async with trio.open_nursery() as nursery:
            asked = await paused(stage, nursery)
            spy_on(stage).before = crash
            await stage.session.answer(asked.id, Grant())
            await wait_all_tasks_blocked()
            if reply == [Hang()]:
                shutil.copytree(stage.state, crashed)
            await stage.session.cancel()
    with closing(open_reader(crashed)) as reader:
        (_, message) = reader.messages(stage.session.id)
        assert message.metadata.request_seq == 1
        assert reader.last_request(stage.session.id, message.id) == 2
        facts = reader.page(stage.session.id, 0).entries
        sent = [e for e in facts if e.fact.name == "provider/attempt_completed"]
        # Of the one that was still streaming only its trace was there.
        assert len(sent) == (1 if reply == [Hang()] else 2)


@pytest.mark.contract("RUN-04")
@pytest.mark.parametrize(("before", "after"), [(2, 5), (2, None), (None, 1)])
async def test_the_limit_of_rounds_is_the_one_that_the_message_began_with(
    tmp_path, before, after
):
    script = replies(RISK, ASK, DONE)
    probes = Probe(), Probe("risky", permission="?")
    async with open_stage(tmp_path, script, *probes, max_rounds=before) as stage:
        async with trio.open_nursery() as nursery:
            asked = await paused(stage, nursery)
            await stage.session.configure(max_rounds=after)
            message = await answered(stage, asked)
        reason = message.metadata.run_stop_reason
        assert reason == ("max_turns" if before == 2 else "complete")
        assert message.metadata.max_provider_rounds == before


async def test_a_run_whose_numbers_are_not_known_is_not_begun(tmp_path):
    async def unknown(message_id):
        await trio.lowlevel.checkpoint()
        raise StorageError("the disk is gone")

    script = replies(RISK, DONE)
    probe = Probe("risky", permission="?")
    async with (
        open_stage(tmp_path, script, probe) as stage,
        trio.open_nursery() as nursery,
    ):
        asked = await paused(stage, nursery)
        change_run_ports(stage, last_request=unknown)
        with pytest.raises(GreenroomError, match="the disk is gone"):
            await stage.session.answer(asked.id, Grant())
        assert probe.calls == []
        # Nothing was done, and the question is as it was.
        assert await stage.session.interactions() == (asked,)
        await stage.session.cancel()
