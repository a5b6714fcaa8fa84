"""``greenroom serve`` that is asked to stop while turns are open."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio
from kit.acp_process import PATIENCE, environment, scripted
from kit.gateway_link import Link, open_link
from kit.rehearsal import journal_of, read_tape

from greenroom.protocol import (
    ActionBlock,
    Event,
    MessagesChanged,
    RunTerminal,
    SessionId,
    StreamUpdated,
)
from greenroom.storage import open_reader

STREAMS = '[[Say("so far"), Hang()]]'
ASKS = '[[Call("write", {"path": "x", "content": "y"}), Halt("tool_use")]]'


@attrs.frozen
class Server:
    process: trio.Process
    link: Link


@asynccontextmanager
async def serving(tmp_path, script: str) -> AsyncIterator[Server]:
    state = tmp_path / "state"
    command = [*scripted(script), "serve", "--port", "0", "--json"]
    async with trio.open_nursery() as nursery:
        with (tmp_path / "stderr").open("wb") as stderr:
            process: trio.Process = await nursery.start(
                partial(
                    trio.run_process,
                    [*command, "--state", str(state), "--cwd", str(tmp_path)],
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    check=False,
                    env=environment(),
                )
            )
        assert process.stdout is not None
        with trio.fail_after(PATIENCE):
            info = json.loads(await process.stdout.receive_some(4_096))
            async with open_link(f"ws://127.0.0.1:{info['port']}/acp") as link:
                yield Server(process, link)
        process.kill()


async def begin(link: Link, wanted: Callable[[Event], bool]) -> str:
    """Prompt a new session, wait for an event, and return the session's id."""
    made = await link.call("session/create")
    session_id = made.session.id
    await link.call("session/attach", sessionId=session_id)
    await link.send("prompt", sessionId=session_id, content="go", commandId="c")
    await link.until(lambda: any(wanted(notice.event) for notice in link.events))
    return session_id


async def terminate(server: Server) -> None:
    server.process.terminate()
    assert await server.process.wait() == 0
    assert server.link.socket.closed is not None
    assert server.link.socket.closed.code == 1001
    # The library leaves that to the collector where the server has closed.
    await trio.aclose_forcefully(server.link.socket._stream)


def ends(tmp_path, session_id: str) -> list[tuple[str, str]]:
    records = journal_of(read_tape(tmp_path / "state", session_id))
    return [(r.outcome, r.stop_reason) for r in records if isinstance(r, RunTerminal)]


def newest(tmp_path, session_id: str) -> Any:
    reader = open_reader(tmp_path / "state")
    try:
        return reader.messages(SessionId(session_id), None, 1, "assistant")[-1]
    finally:
        reader.close()


def streams(event: Event) -> bool:
    return isinstance(event, StreamUpdated) and event.text == "so far"


def asks(event: Event) -> bool:
    blocks = event.message.blocks if isinstance(event, MessagesChanged) else ()
    return any(isinstance(block, ActionBlock) for block in blocks)


async def test_a_turn_that_streams_is_interrupted(tmp_path):
    async with serving(tmp_path, STREAMS) as server:
        session_id = await begin(server.link, streams)
        await terminate(server)
    assert ends(tmp_path, session_id) == [("aborted", "shutdown")]
    message = newest(tmp_path, session_id)
    assert message.status == "error"
    assert message.metadata.error_code == "session_interrupted"
    assert "so far" in [getattr(block, "text", "") for block in message.blocks]
    assert "Traceback" not in (tmp_path / "stderr").read_text()


async def test_a_turn_that_waits_for_an_answer_goes_on_waiting(tmp_path):
    async with serving(tmp_path, ASKS) as server:
        session_id = await begin(server.link, asks)
        await terminate(server)
    assert ends(tmp_path, session_id) == [("paused", "interaction")]
    blocks = newest(tmp_path, session_id).blocks
    (action,) = (block for block in blocks if isinstance(block, ActionBlock))
    assert action.status == "pending"
    assert "Traceback" not in (tmp_path / "stderr").read_text()
