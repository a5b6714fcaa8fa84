"""What a message says of its turn: every key, and what each one means."""

from __future__ import annotations

import attrs
import msgspec
import pytest
import trio
from kit.rehearsal import Probe, open_stage, replies
from trio.testing import MockClock

from greenroom.actors.providers import Call, Halt, Pause, Say, Think, Use
from greenroom.engine import Price, Prices, ToolResult
from greenroom.protocol import InputReceipt, MessageMetadata

KEYS = {
    "runId",
    "runOutcome",
    "runStopReason",
    "errorCode",
    "errorText",
    "providerRounds",
    "maxProviderRounds",
    "requestSeq",
    "toolCalls",
    "noProgressToolLoop",
    "inputTokens",
    "outputTokens",
    "totalTokens",
    "cachedTokens",
    "cacheWriteTokens",
    "reasoningTokens",
    "cost",
    "generationTime",
    "firstTokenTime",
    "reasoningStartTime",
    "reasoningEndTime",
    "tokensPerSecond",
    "model",
    "provider",
    "messageType",
    "compactionStatus",
    "summaryUpdatedAt",
    "inputReceipt",
}


@pytest.mark.contract("RUN-25")
def test_the_keys_of_metadata_are_these():
    schema = msgspec.json.schema(MessageMetadata)
    found = schema["$defs"]["MessageMetadata"]
    assert set(found["properties"]) == KEYS
    assert found.get("required", []) == []
    assert msgspec.json.encode(MessageMetadata()) == b"{}"


@pytest.mark.contract("RUN-25")
def test_what_only_some_messages_have_survives_the_wire():
    metadata = MessageMetadata(
        message_type="compaction",
        compaction_status="compacted",
        summary_updated_at=5.0,
        input_receipt=InputReceipt(mode="steer", read_at=4.0),
    )
    encoded = msgspec.json.encode(metadata)
    assert msgspec.json.decode(encoded) == {
        "messageType": "compaction",
        "compactionStatus": "compacted",
        "summaryUpdatedAt": 5.0,
        "inputReceipt": {"mode": "steer", "readAt": 4.0},
    }
    assert msgspec.json.decode(encoded, type=MessageMetadata) == metadata


async def works_for_two_seconds(arguments, operation):
    await operation.dispatch()
    await trio.sleep(2)
    return ToolResult("ok")


FIRST = [
    Pause(1),
    Think("hm"),
    Pause(2),
    Think("aha"),
    Use(10, 4),
    Call("probe", {"n": 1}),
    Halt("tool_use"),
]
SECOND = [Pause(1), Say("done"), Use(20, 6), Halt()]


@pytest.mark.contract("RUN-25")
async def test_a_whole_turn_says_each_of_them(tmp_path, autojump_clock: MockClock):
    probe = Probe(body=works_for_two_seconds)
    script = replies(FIRST, SECOND)
    async with open_stage(tmp_path, script, probe, max_rounds=9, model="m1") as stage:
        loaded = stage.session._sessions.loaded(stage.session.id)
        assert loaded is not None
        prices = Prices({"m1": Price(input=1e6, output=2e6)})
        loaded.session.ports = attrs.evolve(loaded.session.ports, cost=prices.cost)
        turn = await stage.session.prompt("go")
        (user, stored) = await stage.session.messages()
        assert stored.metadata == turn.message.metadata
        found = msgspec.to_builtins(stored.metadata)
        guard = found.pop("noProgressToolLoop")
        assert len(guard["fingerprint"]) == 24
        (run_id,) = {r.run_id for r in stage.journal() if hasattr(r, "run_kind")}
        assert found == {
            "runId": run_id,
            "runOutcome": "completed",
            "runStopReason": "complete",
            "providerRounds": 2,
            "maxProviderRounds": 9,
            "requestSeq": 2,
            "toolCalls": 1,
            "inputTokens": 30,
            "outputTokens": 10,
            "totalTokens": 40,
            "cost": pytest.approx(50.0),
            "generationTime": pytest.approx(6.0),
            "firstTokenTime": pytest.approx(1.0),
            "reasoningStartTime": pytest.approx(user.created_at + 1, rel=0, abs=0.01),
            "reasoningEndTime": pytest.approx(user.created_at + 3, rel=0, abs=0.01),
            "tokensPerSecond": pytest.approx(10 / 6),
            "model": "m1",
            "provider": "rehearsal",
        }
        assert msgspec.to_builtins(user.metadata) == {}


@pytest.mark.contract("RUN-25")
async def test_what_is_not_known_is_absent(tmp_path):
    async with open_stage(tmp_path, replies([Say("hi"), Halt()])) as stage:
        turn = await stage.session.prompt("go")
        found = msgspec.to_builtins(turn.message.metadata)
        unknown = {
            "inputTokens",
            "outputTokens",
            "totalTokens",
            "cachedTokens",
            "cacheWriteTokens",
            "reasoningTokens",
            "cost",
            "reasoningStartTime",
            "reasoningEndTime",
            "tokensPerSecond",
            "maxProviderRounds",
            "noProgressToolLoop",
            "errorCode",
            "errorText",
        }
        assert not unknown & set(found)
        assert turn.usage is None
        assert turn.cost is None


@pytest.mark.contract("RUN-25")
async def test_cached_and_thinking_tokens_are_sums_where_they_are_told(tmp_path):
    usage = Use(10, 4, cache_read=3, cache_write=2, reasoning=1)
    script = replies(
        [usage, Call("probe", {"n": 1}), Halt("tool_use")],
        [usage, Say("done"), Halt()],
    )
    async with open_stage(tmp_path, script, Probe()) as stage:
        turn = await stage.session.prompt("go")
        metadata = turn.message.metadata
        assert (metadata.cached_tokens, metadata.cache_write_tokens) == (6, 4)
        assert metadata.reasoning_tokens == 2
        assert turn.usage is not None
        assert turn.usage.reasoning == 2
