from __future__ import annotations

import json

import pytest
from kit.raw_server import serve_raw, whole
from kit.rehearsal import Probe, calls_of, open_stage

from greenroom.actors.providers import ChatCompletionsProvider

NATIVE = [{"id": "a", "function": {"name": "probe", "arguments": '{"n": 1}'}}]
AS_TEXT = '{"name": "probe", "arguments": {"n": 1}}'


def body(content, finish, calls=None):
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return whole(json.dumps({"choices": [choice]}).encode())


async def ran(tmp_path, profile, *first):
    """Whether the tool ran for this first reply, and the turn."""
    probe = Probe()
    async with serve_raw([body(*first)], [body("done", "stop")]) as server:
        provider = ChatCompletionsProvider(server.base_url, profile=profile)
        async with (
            provider,
            open_stage(tmp_path, [], probe, provider=provider) as stage,
        ):
            turn = await stage.session.prompt("go")
            assert all(call.response is not None for call in calls_of(turn.message))
            return bool(probe.calls), turn


@pytest.mark.contract("RUN-22")
@pytest.mark.parametrize(
    ("profile", "finish", "expected"),
    [
        ("openai", "stop", False),
        ("compatible", "stop", True),
        ("ollama", "stop", True),
        ("vllm", "stop", True),
        ("openai", "tool_calls", True),
        ("compatible", "length", False),
        ("compatible", "content_filter", False),
        ("compatible", "error", False),
    ],
)
async def test_native_calls_run_after_an_ordinary_stop_only_where_the_dialect_says_so(
    tmp_path, profile, finish, expected
):
    did, _ = await ran(tmp_path, profile, "", finish, NATIVE)
    assert did == expected


@pytest.mark.contract("RUN-22")
@pytest.mark.parametrize(
    ("profile", "content", "finish", "expected"),
    [
        ("text-tools", AS_TEXT, "stop", True),
        ("text-tools", f"```json\n{AS_TEXT}\n```", "stop", True),
        ("text-tools", f"I could say {AS_TEXT}", "stop", False),
        ("text-tools", "I call probe with n = 1", "stop", False),
        ("text-tools", AS_TEXT.replace("probe", "probe2"), "stop", False),
        ("text-tools", AS_TEXT, "length", False),
        ("text-tools", AS_TEXT, "content_filter", False),
        ("compatible", AS_TEXT, "stop", False),
    ],
)
async def test_text_is_a_call_only_where_asked_for_and_only_if_it_parses_as_one(
    tmp_path, profile, content, finish, expected
):
    did, turn = await ran(tmp_path, profile, content, finish)
    assert did == expected
    if finish == "stop" and not expected:
        assert (turn.outcome, turn.text) == ("completed", content)
