"""A gateway that a test plays itself: it answers a console as it is told to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, final

import attrs

if TYPE_CHECKING:  # it need not be installed
    from playwright.sync_api import Page, WebSocketRoute

SESSION: Final = "s1"
SETTINGS: Final = {
    "agentId": "default",
    "title": "Played",
    "workspace": "/work",
    "provider": "p",
    "model": "m",
}


class RefusalError(Exception):
    """An answer that is an error; its text is the code."""


@final
@attrs.define(eq=False)
class PlayedGateway:
    """One session, ``SESSION``, of which the test says what there is to know.

    ``asked`` holds the parameters of every request by its method.
    """

    answers: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]
    asked: list[tuple[str, dict[str, Any]]] = attrs.field(factory=list, init=False)
    connections: list[WebSocketRoute] = attrs.field(factory=list, init=False)
    _page: Page = attrs.field(init=False)

    def play(self, page: Page) -> None:
        """Stand between *page* and its gateway."""
        self._page = page
        page.route_web_socket(re.compile("/acp$"), lambda each: self._connected(each))

    def tell(self, event: dict[str, Any], **more: Any) -> None:
        """Send an event of the session."""
        self.notify("event", {"event": {"sessionId": SESSION, **event}, **more})

    def notify(self, name: str, params: dict[str, Any]) -> None:
        """Send a notification on the newest connection."""
        message = {"jsonrpc": "2.0", "method": f"_greenroom/{name}", "params": params}
        self.connections[-1].send(json.dumps(message))

    def params_of(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of each request of a kind."""
        return [params for name, params in self.asked if name == method]

    def wait_for(self, method: str, times: int) -> None:
        """Wait until a request of that kind came so often."""
        for _ in range(1_000):
            if len(self.params_of(method)) >= times:
                return
            # The way in which the driver lets messages come in.
            self._page.wait_for_timeout(10)
        raise AssertionError(f"{method} came {len(self.params_of(method))} times")

    def _connected(self, connection: WebSocketRoute) -> None:
        self.connections.append(connection)
        connection.on_message(lambda data: self._answer(connection, data))

    def _answer(self, connection: WebSocketRoute, data: str | bytes) -> None:
        request = json.loads(data)
        method = request["method"].removeprefix("_greenroom/")
        self.asked.append((method, request["params"]))
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            answer = (ORDINARY | dict(self.answers))[method](request["params"])
            reply["result"] = answer
        except RefusalError as refusal:
            error = {"code": -32000, "message": str(refusal)}
            reply["error"] = error | {"data": {"code": str(refusal)}}
        connection.send(json.dumps(reply))


def item() -> dict[str, Any]:
    """Return the session as the list has it."""
    times = {"createdAt": 1.0, "updatedAt": 1.0}
    counts = {"head": 1, "messageCount": 1, "state": "idle"}
    return {"id": SESSION, "settings": SETTINGS, **times, **counts}


def message(number: int, text: str = "", **more: Any) -> dict[str, Any]:
    """Return the message with that place; odd ones are the user's."""
    role = "user" if number % 2 else "assistant"
    block = {"type": "text", "id": f"m{number}.0", "text": text or f"Message {number}."}
    times = {"createdAt": 1.0, "updatedAt": 1.0}
    own = {"id": f"m{number}", "orderSeq": number, "role": role, "status": "sent"}
    return {**own, **times, "blocks": [block], **more}


def snapshot(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return the answer to an attach without a cursor."""
    seq = 100
    told = {"sessionId": SESSION, "seq": seq, "settings": SETTINGS, "state": "idle"}
    whole = {**told, "statusVersion": 1, "messages": messages}
    return {"snapshot": whole, "seq": seq, **more}


ORDINARY: Final[dict[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "authenticate": lambda _: {
        "clientId": "c",
        "scopes": ["read", "write", "admin"],
        "resumed": False,
    },
    "session/list": lambda _: {"sessions": [item()]},
    "session/attach": lambda _: snapshot([message(1), message(2)]),
    "session/detach": lambda _: {},
    "journal": lambda _: {"entries": []},
}
