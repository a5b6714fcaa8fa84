"""Talks to a gateway with the library ``websockets``; run by a Python that has it.

    gateway_client.py URL SECRET

Each of the scenes below is a connection of its own. What happened in them is printed as
one JSON object.
"""

# It runs elsewhere, with what is not installed here.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus


class Client:
    def __init__(self, websocket: Any) -> None:
        self.websocket = websocket
        self.last = 0
        self.answers: dict[int, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []

    async def send(self, method: str, **params: Any) -> int:
        self.last += 1
        message = {"jsonrpc": "2.0", "id": self.last, "method": method}
        await self.websocket.send(json.dumps(message | {"params": params}))
        return self.last

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        return await self.result(await self.send(method, **params))

    async def result(self, number: int) -> dict[str, Any]:
        while number not in self.answers:
            await self.read()
        return self.answers[number]["result"]

    async def read(self) -> None:
        message = json.loads(await self.websocket.recv(decode=True))
        if "method" not in message:
            self.answers[message["id"]] = message
        elif message["method"] == "_greenroom/event":
            self.events.append(message["params"]["event"])

    async def event(self, kind: str) -> dict[str, Any]:
        while not (found := [e for e in self.events if e["type"] == kind]):
            await self.read()
        return found[-1]

    @property
    def cursor(self) -> int:
        return max(event.get("seq", 0) for event in self.events)


def bearer(secret: str) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {secret}"}}


async def prompted(url: str, secret: str, told: dict[str, Any]) -> None:
    """Prompt, answer the permission that is asked for, and leave; the turn goes on."""
    async with connect(url, **bearer(secret)) as websocket:
        told["connection"] = websocket.response.headers["Acp-Connection-Id"] != ""
        client = Client(websocket)
        told["version"] = (await client.call("initialize", protocolVersion=1))[
            "protocolVersion"
        ]
        made = await client.call("_greenroom/session/create")
        session_id = told["session"] = made["session"]["id"]
        attached = await client.call("_greenroom/session/attach", sessionId=session_id)
        told["incarnation"] = attached["snapshot"]["incarnation"]
        prompt = {"sessionId": session_id, "content": "go", "commandId": "one"}
        number = await client.send("_greenroom/prompt", **prompt)
        asked = None
        while asked is None:
            await client.read()
            said = [e["message"] for e in client.events if "message" in e]
            blocks = [block for message in said for block in message.get("blocks", ())]
            asked = next((b["id"] for b in blocks if b["type"] == "action"), None)
        told["cursor"] = client.cursor
        await client.call(
            "_greenroom/interaction/answer",
            sessionId=session_id,
            interactionId=asked,
            answer={"type": "grant"},
        )
        told["text"] = (await client.result(number))["text"]
        await client.event("stream/completed")
        told["live"] = seqs(client, after=told["cursor"])


async def resumed(url: str, secret: str, told: dict[str, Any]) -> None:
    """Come back with the cursor, and with the token in the first message."""
    async with connect(url) as websocket:
        client = Client(websocket)
        who = await client.call(
            "_greenroom/authenticate", token=secret, clientId="phone"
        )
        told["client"] = who["clientId"]
        attached = await client.call(
            "_greenroom/session/attach",
            sessionId=told["session"],
            after=told["cursor"],
            incarnation=told["incarnation"],
        )
        told["snapshot"] = "snapshot" in attached
        await client.event("stream/completed")
        told["replayed"] = seqs(client, after=0)


def seqs(client: Client, after: int) -> list[tuple[int, str]]:
    durable = [(e["seq"], e["type"]) for e in client.events if "seq" in e]
    return [(seq, kind) for seq, kind in durable if seq > after]


async def refused(url: str, secret: str, told: dict[str, Any]) -> None:
    """Be refused in HTTP, for the first message, and for one that is too long."""
    try:
        async with connect(url, **bearer("wrong" * 8)):
            pass
    except InvalidStatus as exc:
        told["status"] = exc.response.status_code
    told["codes"] = [
        await code_of(url, {}, '{"jsonrpc":"2.0","id":1,"method":"initialize"}'),
        await code_of(url, bearer(secret), "x" * (16 << 20)),
    ]


async def code_of(url: str, how: dict[str, Any], message: str) -> int | None:
    async with connect(url, **how) as websocket:
        try:
            await websocket.send(message)
            while True:
                await websocket.recv()
        except ConnectionClosed:
            return websocket.close_code


async def main(url: str, secret: str) -> None:
    told: dict[str, Any] = {}
    for scene in (prompted, resumed, refused):
        await scene(url, secret, told)
    print(json.dumps(told), flush=True)
    # The gateway is stopped now, and says so to who is connected.
    async with connect(url, **bearer(secret)) as websocket:
        print("connected", flush=True)
        try:
            await websocket.recv()
        except ConnectionClosed:
            print(websocket.close_code, flush=True)


asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 60))
