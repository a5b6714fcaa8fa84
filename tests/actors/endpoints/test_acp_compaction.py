"""``/compact`` in a client of the Agent Client Protocol."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
from kit.acp_client import COMMANDS, maker, open_client
from kit.rehearsal import open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Fail, Halt, Hang, Say
from greenroom.protocol.context import compact_focus

LONG = "word " * 400
SAID = [Say(f"an answer {LONG}"), Halt()]
SUMMARY = [Say("## Goal\nkeep the door shut"), Halt()]
DONE = [Say("done"), Halt()]


@asynccontextmanager
async def talking(tmp_path, *script):
    """A client whose session has had one turn."""
    async with (
        open_stage(tmp_path, replies(SAID, *script)) as stage,
        open_client(maker(stage.engine)) as client,
    ):
        session_id = await client.start(tmp_path / "workspace")
        await client.prompt(session_id, "ask")
        yield stage, client, session_id


def anchors(stage, session_id):
    names = [entry.fact.name for entry in stage.tape(session_id)]
    return [name for name in names if name == "compaction/manual"]


async def test_the_command_is_offered_behind_the_new_session(tmp_path):
    async with (
        open_stage(tmp_path, []) as stage,
        open_client(maker(stage.engine)) as client,
    ):
        await client.start(tmp_path / "workspace")
        await client.until(lambda: client.updates(COMMANDS))
        (told,) = client.updates(COMMANDS)
        (command,) = told["availableCommands"]
        assert command["name"] == "compact"
        assert command["input"]["hint"]
        # The client knows the session by then.
        assert "result" in client.received[-2]


async def test_it_compacts_and_says_what_became_of_the_tokens(tmp_path):
    async with talking(tmp_path, SUMMARY, DONE) as (stage, client, session_id):
        answer = await client.prompt(session_id, "/compact the door\nand its key")
        assert answer["result"]["stopReason"] == "end_turn"
        assert "tokens became" in client.text()
        assert anchors(stage, session_id) == ["compaction/manual"]
        assert "and its key" in str(stage.provider.requests[-1].messages)
        await client.prompt(session_id, "next")
        assert "keep the door shut" in str(stage.provider.requests[-1].messages)
        # It was no turn, and the session is not called after it.
        reader = stage.engine.session(session_id)
        assert len(await reader.messages()) == 4
        assert reader.settings is not None
        assert reader.settings.title == "ask"


async def test_why_nothing_was_compacted_is_said(tmp_path):
    failed = [Fail("no", status=400)]
    async with talking(tmp_path, failed) as (stage, client, session_id):
        answer = await client.prompt(session_id, "/compact")
        assert answer["result"]["stopReason"] == "end_turn"
        assert "nothing was changed: " in client.text()
        assert anchors(stage, session_id) == []


@pytest.mark.parametrize("begun", [True, False])
async def test_a_cancel_stops_it_whenever_it_comes(tmp_path, begun):
    async with talking(tmp_path, [Hang()], DONE) as (stage, client, session_id):
        request = client.prompting(session_id, "/compact")
        stop = {"method": "session/cancel", "params": {"sessionId": session_id}}
        if begun:
            await client.send(request)
            await wait_all_tasks_blocked()
            await client.send(stop)
        else:
            await client.send(request, stop)
        with trio.fail_after(5):
            answer = await client.response(request["id"])
        assert answer["result"]["stopReason"] == "cancelled"
        assert anchors(stage, session_id) == []
        # And the session is free again.
        assert "result" in await client.prompt(session_id, "next")


async def test_a_prompt_meanwhile_is_refused_as_beside_a_turn(tmp_path):
    async with talking(tmp_path, [Hang()]) as (_, client, session_id):
        request = client.prompting(session_id, "/compact")
        await client.send(request)
        await wait_all_tasks_blocked()
        refused = await client.prompt(session_id, "next")
        assert "works on a prompt already" in refused["error"]["message"]
        await client.notify("session/cancel", sessionId=session_id)
        await client.response(request["id"])


@pytest.mark.parametrize(
    ("text", "focus"),
    [
        ("/compact", ""),
        (" /compact  the door ", "the door"),
        ("/compact\nthe door", "the door"),
        ("/compacted", None),
        ("say /compact", None),
        ("/", None),
        ("", None),
    ],
)
def test_the_command_is_the_first_word(text, focus):
    assert compact_focus(text) == focus
