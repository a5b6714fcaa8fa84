"""Input is made canonical once, where it enters; nothing later reads it again."""

from __future__ import annotations

from typing import Any, Final

import pytest
import trio
from kit.rehearsal import Probe, Stage, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.sessions import _actor, _commands, _handle, _intake
from greenroom.engine import Grant
from greenroom.protocol import (
    AssistantMessage,
    ImagePart,
    MessageRecord,
    ModelRequest,
    TextPart,
    ToolMessage,
    UserMessage,
)
from greenroom.protocol.acp.v1 import _prompt
from greenroom.testing import Call, Halt, Say

ASK: Final = [Say("May I?"), Call("probe", {"n": 1}), Halt("tool_use")]
DONE: Final = [Say("done"), Halt()]
PICTURE: Final = ImagePart("image/png", "aWNvbg==")
SAID: Final = (TextPart("  look\r\nat this "), PICTURE, TextPart("\u00e9 e\u0301"))
"""Nothing that a second reading would leave as it is, were there one."""


def broken(*_: Any, **__: Any) -> Any:
    raise AssertionError("what was sent was read again")


def said_in(request: ModelRequest) -> tuple[Any, ...]:
    (message,) = [m for m in request.messages if isinstance(m, UserMessage)]
    return message.parts


def disable_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can read what a client sends, nor what it was kept as until taken in."""
    monkeypatch.setattr(_handle, "_parts", broken)
    monkeypatch.setattr(_actor, "check_parts", broken)
    monkeypatch.setattr(_commands, "check_parts", broken)
    monkeypatch.setattr(_intake, "read_command", broken)
    monkeypatch.setattr(_prompt, "parts_of", broken)


async def send(stage: Stage, waits: bool) -> None:
    if waits:
        await stage.session.queue(SAID, command_id="one")
    else:
        await stage.session.prompt(SAID, command_id="one")


async def resume(stage: Stage) -> MessageRecord:
    """Answer what waits; returns the user's message as it was before."""
    before = (await stage.session.messages())[0]
    (asked,) = await stage.session.interactions()
    await stage.session.answer(asked.id, Grant())
    await wait_all_tasks_blocked()
    after = await stage.session.messages()
    assert after[-1].metadata.run_outcome == "completed"
    assert after[0] == before
    return before


@pytest.mark.contract("SES-16")
@pytest.mark.parametrize("reloaded", [False, True])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_resume_sends_what_was_stored_with_no_codec_left(
    tmp_path, monkeypatch, reloaded, waits
):
    checks, check = [], _actor.check_parts

    def count(parts: Any) -> None:
        checks.append(parts)
        check(parts)

    monkeypatch.setattr(_actor, "check_parts", count)
    script = replies(ASK, DONE)
    async with (
        open_stage(tmp_path, script, Probe(permission="?")) as stage,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(send, stage, waits)
        await wait_all_tasks_blocked()
        assert checks == [SAID]
        disable_codecs(monkeypatch)
        if not reloaded:
            await resume(stage)
        nursery.cancel_scope.cancel()
    requests = [*stage.provider.requests]
    if reloaded:
        again, asks = stage.session.id, Probe(permission="?")
        async with open_stage(tmp_path, replies(DONE), asks, session_id=again) as stage:
            await resume(stage)
            requests += stage.provider.requests
    first, second = requests
    assert said_in(first) == said_in(second) == SAID
    kinds = [type(message) for message in second.messages]
    assert kinds[-3:] == [UserMessage, AssistantMessage, ToolMessage]
