"""A session in a browser: Starlette, and Server-Sent Events that resume.

    pip install starlette uvicorn
    python docs/snippets/browser.py        # then open http://127.0.0.1:8000

Every durable event has its number as the event's id, so that a browser that lost the
connection comes back with `Last-Event-ID` and misses nothing. It has no login: bind it
to your own machine only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from greenroom.aio import open_engine
from greenroom.engine import Provider
from greenroom.protocol import Event, GreenroomError, Snapshot
from greenroom.testing import Halt, RehearsalProvider, Say

PAGE = """<!doctype html><meta charset="utf-8"><title>greenroom</title>
<form><input name="text" placeholder="Say something" autofocus></form><pre></pre>
<script type="module">
const {id} = await (await fetch("/sessions", {method: "POST"})).json()
const shown = document.querySelector("pre")
const events = new EventSource(`/sessions/${id}/events`)
events.addEventListener("stream/updated", ({data}) => {
  const {kind, text} = JSON.parse(data)
  if (kind === "text" && text) shown.append(text)
})
events.addEventListener("stream/completed", () => shown.append("\\n\\n"))
document.querySelector("form").onsubmit = (submit) => {
  submit.preventDefault()
  fetch(`/sessions/${id}/prompt`, {method: "POST", body: submit.target.text.value})
  submit.target.reset()
}
</script>"""


async def page(request: Request) -> Response:
    """Serve the page."""
    return HTMLResponse(PAGE)


async def create(request: Request) -> Response:
    """Make a session."""
    session = await request.app.state.engine.create_session(
        workspace=".", model="rehearsed"
    )
    return JSONResponse({"id": session.id})


async def prompt(request: Request) -> Response:
    """Take what the user says; its turn goes on by itself."""
    session = request.app.state.engine.session(request.path_params["id"])
    await session.submit((await request.body()).decode())
    return Response(status_code=202)


async def events(request: Request) -> Response:
    """Stream a session: what there is, or what came after the last event, then live."""
    session = request.app.state.engine.session(request.path_params["id"])
    last = request.headers.get("last-event-id", "")
    after = int(last) if last.isdecimal() else None
    stack = AsyncExitStack()
    try:
        followed = await stack.enter_async_context(session.follow(after=after))
    except GreenroomError as exc:
        return JSONResponse({"error": exc.code, "message": str(exc)}, status_code=404)

    async def stream() -> AsyncIterator[bytes]:
        async with stack:
            if followed.snapshot is not None:
                yield server_sent(followed.snapshot)
            async for event in followed:
                yield server_sent(event)

    return StreamingResponse(
        stream(),
        media_type="text/event-stream",
        headers={"cache-control": "no-store"},
    )


def server_sent(event: Event | Snapshot) -> bytes:
    """Encode one event; what is not durable has no number."""
    seq = getattr(event, "seq", None)
    name = event.__struct_config__.tag or "snapshot"
    number = b"" if seq is None else f"id: {seq}\n".encode()
    data = msgspec.json.encode(event)
    return b"event: %s\n%sdata: %s\n\n" % (str(name).encode(), number, data)


def application(provider: Provider, state: Path) -> Starlette:
    """Return the application; its engine lives as long as it does."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        async with open_engine(state=state, provider=provider) as engine:
            app.state.engine = engine
            yield

    routes = [
        Route("/", page),
        Route("/sessions", create, methods=["POST"]),
        Route("/sessions/{id}/prompt", prompt, methods=["POST"]),
        Route("/sessions/{id}/events", events),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


if __name__ == "__main__":
    import uvicorn

    with TemporaryDirectory() as folder:
        parrot = RehearsalProvider(lambda _: [Say("Is that so? ", chunk=1), Halt()])
        uvicorn.run(application(parrot, Path(folder)))
