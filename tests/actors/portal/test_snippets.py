"""The examples of the guide to embedding run, and do what it says."""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest

from greenroom.testing import Halt, RehearsalProvider, Say

SNIPPETS = Path(__file__).parents[3] / "docs" / "snippets"
PATIENCE = 30.0


def test_the_example_for_asyncio_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = runpy.run_path(str(SNIPPETS / "embed_asyncio.py"))
    asyncio.run(names["main"](RehearsalProvider(names["SCRIPT"]), tmp_path))

    shown = capsys.readouterr().out
    assert shown.startswith("I tell both.\n  may it send 'dinner' to ada?\n")
    assert shown.count("may it") == 2
    assert "\ncompleted: Ada knows; I may not write to Bob.\n" in shown
    assert "it took too long, and was stopped" in shown


def test_the_example_for_threads_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = runpy.run_path(str(SNIPPETS / "embed_threads.py"))
    names["main"](RehearsalProvider(names["reply"]), tmp_path)

    assert capsys.readouterr().out == "Ada: at home\nBob: I may not ring\n"


#### In a browser, which is here a client of the interface that servers speak


@attrs.define(eq=False)
class Exchange:
    """A request and what has come of it."""

    status: int = 0
    body: asyncio.Queue[bytes] = attrs.field(factory=asyncio.Queue)
    gone: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def lines(self, until: str) -> list[str]:
        """Return what comes up to the event named *until*, whole."""
        text = ""
        while f"event: {until}\n" not in text or not text.endswith("\n\n"):
            part = await asyncio.wait_for(self.body.get(), PATIENCE)
            text += part.decode()
        return text.splitlines()


@asynccontextmanager
async def requested(
    app: Callable[..., Any], method: str, path: str, body: str = "", **headers: str
) -> AsyncIterator[Exchange]:
    """Ask *app*; leaving the block is what a browser does that goes away."""
    exchange, asked = Exchange(), False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": body.encode()}
        await exchange.gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
        else:
            await exchange.body.put(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [
            (name.replace("_", "-").encode(), value.encode())
            for name, value in headers.items()
        ],
    }
    serving = asyncio.create_task(app(scope, receive, send))
    try:
        yield exchange
    finally:
        exchange.gone.set()
        await serving


async def answer(app: Callable[..., Any], path: str, body: str = "") -> bytes:
    async with requested(app, "POST", path, body) as exchange:
        return await exchange.body.get()


def ids(lines: list[str]) -> list[str]:
    return [line[4:] for line in lines if line.startswith("id: ")]


def test_the_example_streams_a_session_to_a_browser_that_comes_back(
    tmp_path: Path,
) -> None:
    pytest.importorskip("starlette", reason="starlette is not installed")
    names = runpy.run_path(str(SNIPPETS / "browser.py"))
    provider = RehearsalProvider(lambda _: [Say("Is that so?", chunk=4), Halt()])
    app = names["application"](provider, tmp_path / "state")

    async def main() -> None:
        async with app.router.lifespan_context(app):
            made = msgspec.json.decode(await answer(app, "/sessions"))
            events = f"/sessions/{made['id']}/events"
            async with requested(app, "GET", events) as stream:
                first = await stream.lines("snapshot")
                await answer(app, f"/sessions/{made['id']}/prompt", "It rains.")
                seen = await stream.lines("stream/completed")
            assert stream.status == 200
            assert first[0] == "event: snapshot"
            told = [
                msgspec.json.decode(line[6:]) for line in seen if line[:6] == "data: "
            ]
            texts = [t.get("text", "") for t in told if t.get("kind") == "text"]
            assert "".join(texts) == "Is that so?"
            durable = [*ids(first), *ids(seen)]
            assert len(set(durable)) == len(durable) > 3
            for number, last in enumerate(durable[:-1], 1):
                async with requested(app, "GET", events, last_event_id=last) as stream:
                    again = await stream.lines("stream/completed")
                assert ids(again) == durable[number:], "none missing, none twice"
            seqs = [place.partition("/")[2].partition(".")[0] for place in durable]
            assert len(set(seqs)) < len(seqs), "some have the same number"
            await app.state.engine.session(made["id"]).clear()
            for last in (durable[1], durable[-1], "made/1.up", "x/0.0", "12"):
                async with requested(app, "GET", events, last_event_id=last) as stream:
                    anew = await stream.lines("snapshot")
                assert anew[0] == "event: snapshot"
                assert not set(ids(anew)) & set(durable)
            async with requested(app, "GET", "/sessions/none/events") as stream:
                assert b"session_not_found" in await stream.body.get()
            assert stream.status == 404

    asyncio.run(main())
