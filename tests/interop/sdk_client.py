"""Drives an agent with the protocol's Python SDK; run by a Python that has it.

    sdk_client.py WORK COMMAND...

Prompts once and grants what is asked, prompts again and cancels when the shell has
started. What happened is printed as one JSON object.
"""

# It runs elsewhere, with what is not installed here.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import acp
from acp import schema


class Client:
    def __init__(self) -> None:
        self.updates: list[str] = []
        self.asked: list[str] = []
        self.text = ""

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update.session_update)
        if isinstance(update, schema.AgentMessageChunk):
            self.text += update.content.text

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **_: Any
    ) -> schema.RequestPermissionResponse:
        self.asked.append(tool_call.title)
        chosen = next(one for one in options if one.kind == "allow_once")
        return schema.RequestPermissionResponse(
            outcome=schema.AllowedOutcome(
                outcome="selected", option_id=chosen.option_id
            )
        )

    def on_connect(self, conn: Any) -> None:
        pass


async def main(work: Path, *command: str) -> None:
    client = Client()
    async with acp.spawn_agent_process(
        client, *command, cwd=work, transport_kwargs={"stderr": None}
    ) as (agent, process):
        started = await agent.initialize(protocol_version=1)
        session = await agent.new_session(cwd=str(work), mcp_servers=[])
        names = {"session_id": session.session_id, "prompt": [acp.text_block("go")]}
        first = await agent.prompt(**names)
        second = asyncio.create_task(agent.prompt(**names))
        while not (work / "pid").exists():  # noqa: ASYNC110 - only a file tells it
            await asyncio.sleep(0.02)
        await agent.cancel(session_id=session.session_id)
        stops = [first.stop_reason, (await second).stop_reason]
    told = {
        "version": started.protocol_version,
        "agent": started.agent_info.name,
        "modes": [mode.id for mode in session.modes.available_modes],
        "stops": stops,
        "updates": client.updates,
        "asked": client.asked,
        "text": client.text,
        "status": process.returncode,
    }
    print(json.dumps(told))


asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
