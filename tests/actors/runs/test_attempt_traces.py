"""What was sent in each attempt: whose it is, what is left out, what can go wrong."""

from __future__ import annotations

import json
from contextlib import closing

import httpx2
import pytest
from kit.attempts import attempts_of
from kit.rehearsal import open_stage, replies, spy_on
from kit.run_ports import change_run_ports
from trio.testing import MockClock

from greenroom.actors.providers import (
    Call,
    ChatCompletionsProvider,
    Fail,
    Halt,
    RehearsalProvider,
    Say,
)
from greenroom.protocol import MAX_TRACE_BYTES, WireRequest
from greenroom.storage import open_reader
from greenroom.testing import RecordingTool

DONE = [Say("done"), Halt()]
BUSY = [Fail("overloaded", status=503)]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]
KEY = "sk-live-abcdefghijklmnopqrstuvwxyz"


def kept(stage):
    with closing(open_reader(stage.state)) as reader:
        return reader.traces(stage.session.id)


def numbers(trace):
    return trace.logical_round, trace.request_seq, trace.physical_attempt


@pytest.mark.contract("TRY-23")
async def test_each_attempt_has_a_row_with_what_it_sent(
    tmp_path, autojump_clock: MockClock
):
    script = replies(BUSY, ASK, DONE)
    async with open_stage(tmp_path, script, RecordingTool("probe")) as stage:
        turn = await stage.session.prompt("go")
        rows = kept(stage)
        assert [numbers(row) for row in rows] == [(1, 1, 1), (1, 1, 2), (2, 2, 1)]
        facts = attempts_of(stage)
        assert [(r.run_id, r.message_id, r.provider, r.model) for r in rows] == [
            (turn.message.metadata.run_id, f["messageId"], f["provider"], f["model"])
            for f in facts
        ]
        sent = [json.loads(row.payload)["body"]["messages"] for row in rows]
        assert sent[0] == sent[1] != sent[2]


@pytest.mark.contract("TRY-23")
async def test_a_trace_that_is_made_late_is_still_the_first_attempts(
    tmp_path, autojump_clock: MockClock
):
    late = []
    script = replies(BUSY, ASK, DONE)
    async with open_stage(tmp_path, script, RecordingTool("probe")) as stage:
        change_run_ports(stage, trace_soon=late.append)
        await stage.session.prompt("go")
        made = [make() for make in late]
        assert [numbers(trace) for trace in made] == [(1, 1, 1), (1, 1, 2), (2, 2, 1)]
        assert "result of probe" not in made[1].payload
        assert "result of probe" in made[2].payload


class Answering(httpx2.AsyncBaseTransport):
    """A server that says one word, and what came to it."""

    def __init__(self):
        self.headers = []

    async def handle_async_request(self, request):
        self.headers.append(dict(request.headers))
        chunk = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}'
        body = httpx2.ByteStream(chunk + b"\n\ndata: [DONE]\n\n")
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=body)


@pytest.mark.contract("TRY-23")
@pytest.mark.parametrize("key", [KEY, "a-key-of-no-known-shape"])
async def test_a_key_is_sent_and_not_kept(tmp_path, key):
    server = Answering()
    provider = ChatCompletionsProvider("http://x/v1", api_key=key, transport=server)
    async with provider, open_stage(tmp_path, [], provider=provider) as stage:
        turn = await stage.session.prompt(f"my key is {key}, and a word")
        assert turn.text == "hi"
        assert server.headers[0]["authorization"] == f"Bearer {key}"
        (row,) = kept(stage)
        assert key not in row.payload
        payload = json.loads(row.payload)
        assert payload["url"] == "http://x/v1/chat/completions"
        assert payload["headers"]["authorization"] == "[redacted]"
        # What is kept is what was sent, header by header.
        assert payload["headers"].keys() <= server.headers[0].keys()
        said = payload["body"]["messages"][0]["content"]
        assert said == "my key is [redacted], and a word"


@pytest.mark.contract("TRY-23")
async def test_a_payload_that_is_too_large_is_cut_and_says_so(tmp_path):
    script = replies(DONE, DONE)
    long = "long words " * 60_000
    async with open_stage(tmp_path, script, system_prompt=long) as stage:
        assert (await stage.session.prompt("go")).text == "done"
        (row,) = kept(stage)
        assert row.truncated
        assert len(row.payload.encode()) <= MAX_TRACE_BYTES
    (tmp_path / "b").mkdir()
    async with open_stage(tmp_path / "b", script) as stage:
        await stage.session.prompt("go")
        (row,) = kept(stage)
        assert not row.truncated


class Unreadable(RehearsalProvider):  # pyright: ignore[reportGeneralTypeIssues]
    """A provider that can't say what it sends."""

    def wire(self, request) -> WireRequest:
        raise RuntimeError("no idea")


@pytest.mark.contract("TRY-23")
@pytest.mark.parametrize("fault", ["made", "kept"])
async def test_a_trace_that_fails_changes_nothing_of_the_run(tmp_path, caplog, fault):
    script = replies(ASK, DONE)
    provider = Unreadable(script) if fault == "made" else None
    probe = RecordingTool("probe")
    async with open_stage(tmp_path, script, probe, provider=provider) as stage:
        if fault == "kept":
            store = spy_on(stage).inner.writer._store
            store.connection.execute("DROP TABLE attempt_trace")
        assert (await stage.session.prompt("go")).text == "done"
        assert len(attempts_of(stage)) == 2
        told = [r for r in caplog.records if "a trace of session" in r.getMessage()]
        assert len(told) == 2
        if fault == "kept":
            store.connection.execute(_TABLE)


_TABLE = "CREATE TABLE attempt_trace (id INTEGER, session INTEGER, message TEXT)"


@pytest.mark.contract("TRY-23")
async def test_a_request_is_replayed_from_its_highest_attempt(
    tmp_path, autojump_clock: MockClock
):
    async with open_stage(tmp_path, replies(BUSY, BUSY, DONE)) as stage:
        turn = await stage.session.prompt("go")
        with closing(open_reader(stage.state)) as reader:
            row = reader.request_trace(stage.session.id, turn.message.id, 1)
        assert row is not None
        assert numbers(row) == (1, 1, 3)
