"""Drives a gateway with the protocol's Python SDK, over its own WebSocket client.

    sdk_gateway_client.py WORK URL

Prompts once and grants what is asked. What happened is printed as one JSON object.
"""

# It runs elsewhere, with what is not installed here.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import acp
from acp import schema
from acp.ws import create_websocket_stream


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


async def main(work: str, url: str) -> None:
    client = Client()
    stream = await create_websocket_stream(url)
    agent = acp.connect_to_agent(client, stream)
    started = await agent.initialize(protocol_version=1)
    session = await agent.new_session(cwd=work, mcp_servers=[])
    ended = await agent.prompt(
        session_id=session.session_id, prompt=[acp.text_block("go")]
    )
    told = {
        "version": started.protocol_version,
        "agent": started.agent_info.name,
        "stop": ended.stop_reason,
        "updates": client.updates,
        "asked": client.asked,
        "text": client.text,
    }
    await stream.close()
    print(json.dumps(told))


asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 60))
