"""A client of an ACP agent over memory streams; it holds all it gets to the schema."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
from kit.acp_schema import check
from trio.testing import memory_stream_pair

from greenroom.actors.endpoints import AgentInfo, SessionMaker, serve_acp
from greenroom.engine import Engine

NEVER = object()
"""What `AcpClient.on_permission` returns to leave a request unanswered."""


COMMANDS = "available_commands_update"
"""What a client may offer, which is no news of a turn."""


def allow(params: dict[str, Any]) -> Any:
    """Choose the first option of that kind."""
    return choose(params, "allow_once")


def choose(params: dict[str, Any], kind: str) -> Any:
    option = next(one for one in params["options"] if one["kind"] == kind)
    return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}


CANCELLED = {"outcome": {"outcome": "cancelled"}}


@attrs.define(eq=False)
class AcpClient:
    """One connection, and everything that came over it."""

    stream: trio.abc.HalfCloseableStream
    received: list[dict[str, Any]] = attrs.field(factory=list)
    on_permission: Callable[[dict[str, Any]], Any] = allow
    asked: trio.Event = attrs.field(factory=trio.Event)
    """Set when the agent has asked for a permission."""
    closed: trio.Event = attrs.field(factory=trio.Event)
    _methods: dict[Any, str] = attrs.field(factory=dict)
    _changed: trio.Event = attrs.field(factory=trio.Event)
    _last_id: int = -1

    #### Sending

    async def send(self, *messages: dict[str, Any] | bytes) -> None:
        """Send messages, in one piece."""
        data = b""
        for message in messages:
            if isinstance(message, bytes):
                data += message
                continue
            if "id" in message and "method" in message:
                self._methods[message["id"]] = message["method"]
            data += json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n"
        await self.stream.send_all(data)

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        """Return a request with the next id, not sent yet."""
        self._last_id += 1
        return {"id": self._last_id, "method": method, "params": params}

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its response, whole."""
        request = self.request(method, **params)
        await self.send(request)
        return await self.response(request["id"])

    async def notify(self, method: str, **params: Any) -> None:
        await self.send({"method": method, "params": params})

    async def response(self, request_id: Any) -> dict[str, Any]:
        """Wait for a response, and see that there is only one."""
        while not (found := self.responses(request_id)):
            assert not self.closed.is_set(), f"no response to {request_id!r}"
            await self.news()
        (response,) = found
        return response

    #### Looking

    def responses(self, request_id: Any) -> list[dict[str, Any]]:
        return [
            message
            for message in self.received
            if "method" not in message and message["id"] == request_id
        ]

    def updates(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return what was told of sessions, in order; of commands only when asked."""
        found = [
            message["params"]["update"]
            for message in self.received
            if message.get("method") == "session/update"
        ]
        if kind is None:
            return [u for u in found if u["sessionUpdate"] != COMMANDS]
        return [u for u in found if u["sessionUpdate"] == kind]

    def told(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of every message of a method."""
        return [m["params"] for m in self.received if m.get("method") == method]

    def asks(self) -> list[dict[str, Any]]:
        """Return the agent's requests, whole."""
        return [m for m in self.received if "id" in m and "method" in m]

    def text(self) -> str:
        chunks = self.updates("agent_message_chunk")
        return "".join(chunk["content"]["text"] for chunk in chunks)

    def story(self) -> list[str]:
        """Return what came, a word for each; a run of the same word is one."""
        words: list[str] = []
        for message in self.received:
            word = _word(message)
            if word == COMMANDS:
                continue
            if not words or words[-1] != word:
                words.append(word)
        return words

    async def news(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()

    async def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            await self.news()

    #### Shortcuts

    async def start(self, workspace: Path, **initialize: Any) -> str:
        """Shake hands, make a session and return its id."""
        offered = {"protocolVersion": 1, "clientCapabilities": {}} | initialize
        assert "result" in await self.call("initialize", **offered)
        return await self.new_session(workspace)

    async def new_session(self, workspace: Path) -> str:
        made = await self.call("session/new", cwd=str(workspace), mcpServers=[])
        return made["result"]["sessionId"]

    def prompting(self, session_id: str, text: str = "go") -> dict[str, Any]:
        content = [{"type": "text", "text": text}]
        return self.request("session/prompt", sessionId=session_id, prompt=content)

    async def prompt(self, session_id: str, text: str = "go") -> dict[str, Any]:
        request = self.prompting(session_id, text)
        await self.send(request)
        return await self.response(request["id"])

    #### Receiving

    async def read(self) -> None:
        rest = b""
        async for data in self.stream:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                await self._take(json.loads(line))
        self.closed.set()
        self._changed.set()

    async def _take(self, message: dict[str, Any]) -> None:
        answers = None if "method" in message else self._methods.get(message["id"])
        if message.get("method") != "$/cancel_request":
            check(message, answers=answers)
        self.received.append(message)
        if message.get("method") == "session/request_permission":
            await self._answer(message)
        self._changed.set()

    async def _answer(self, message: dict[str, Any]) -> None:
        self.asked.set()
        answer = self.on_permission(message["params"])
        if answer is NEVER:
            return
        kind = "error" if "code" in answer else "result"
        await self.send({"id": message["id"], kind: answer})


def _word(message: dict[str, Any]) -> str:
    if "method" not in message:
        result = message.get("result", {})
        return result.get("stopReason") or ("error" if "error" in message else "result")
    if message["method"] != "session/update":
        return message["method"].rpartition("/")[2]
    update = message["params"]["update"]
    status = update.get("status")
    return f"{update['sessionUpdate']}{f' {status}' if status else ''}"


def maker(engine: Engine, **settings: Any) -> SessionMaker:
    """Return what makes sessions of *engine*."""

    async def make(folder: Path) -> Any:
        return await engine.create_session(workspace=folder, **settings)

    return make


@asynccontextmanager
async def open_client(
    make: SessionMaker, *, max_unsent_bytes: int = 1 << 24
) -> AsyncGenerator[AcpClient]:
    """Connect a client to an agent; at the end the agent's input has ended."""
    ours, theirs = memory_stream_pair()
    client = AcpClient(ours)

    async def serve() -> None:
        await serve_acp(
            theirs,
            theirs,
            make,
            AgentInfo("greenroom", "1"),
            max_unsent_bytes=max_unsent_bytes,
        )
        await theirs.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        nursery.start_soon(client.read)
        yield client
        if not client.closed.is_set():
            await client.stream.send_eof()
