"""A session in a browser: Starlette, and Server-Sent Events that resume.

    pip install starlette uvicorn
    python docs/snippets/browser.py        # then open http://127.0.0.1:8000

Every durable event has its place as the event's id, so that a browser that lost the
connection comes back with `Last-Event-ID`, misses nothing and is told nothing durable
twice; one that comes back to a session that was cleared begins anew. It has no login:
bind it to your own machine only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from greenroom.aio import Follower, SessionHandle, open_engine
from greenroom.engine import Provider, UnknownCursorError
from greenroom.protocol import Event, GreenroomError, Snapshot
from greenroom.testing import Halt, RehearsalProvider, Say

PAGE = """<!doctype html><meta charset="utf-8"><title>greenroom</title>
<form><input name="text" placeholder="Say something" autofocus></form>
<main style="white-space: pre-wrap"></main>
<script type="module">
const {id} = await (await fetch("/sessions", {method: "POST"})).json()
const shown = document.querySelector("main")
const at = (parent, tag, id) => {
  const made = Object.assign(document.createElement(tag), {id})
  const found = [...parent.children].find((child) => child.id === id)
  return found ?? parent.appendChild(made)
}
const tell = ({id, blocks = []}) => {
  for (const block of blocks.filter(({type}) => type === "text"))
    at(at(shown, "p", id), "span", block.id).textContent = block.text
}
const events = new EventSource(`/sessions/${id}/events`)
const on = (name, act) =>
  events.addEventListener(name, ({data}) => act(JSON.parse(data)))
on("snapshot", ({messages}) => {
  shown.replaceChildren()
  messages.forEach(tell)
})
for (const name of ["session/messages_changed", "stream/completed", "stream/failed"])
  on(name, ({message}) => tell(message))
on("session/message_retracted", ({messageId}) => at(shown, "p", messageId).remove())
on("stream/updated", ({messageId, itemId, kind, offset = 0, text = "", block}) => {
  if (kind !== "text") return
  const span = at(at(shown, "p", messageId), "span", itemId)
  const before = [...span.textContent].slice(0, offset).join("")
  span.textContent = block ? block.text : before + text
})
document.querySelector("form").onsubmit = (submit) => {
  submit.preventDefault()
  fetch(`/sessions/${id}/prompt`, {method: "POST", body: submit.target.text.value})
  submit.target.reset()
}
</script>"""


@attrs.frozen
class Place:
    """How far a browser was told; in the stream it is the id of a durable event."""

    incarnation: str
    """Of the session's record: one that was cleared counts from 1 again."""
    seq: int
    """The number of which not all was told; several events may have the same one."""
    told: int
    """How many of its events were."""

    @classmethod
    def of(cls, last_event_id: str) -> Place | None:
        """Return what a browser says; ``None``: it was not here, or makes it up."""
        incarnation, _, numbers = last_event_id.rpartition("/")
        seq, _, told = numbers.partition(".")
        if not (seq.isdecimal() and told.isdecimal() and len(numbers) < 20):
            return None
        return cls(incarnation, int(seq), int(told))

    def __str__(self) -> str:
        return f"{self.incarnation}/{self.seq}.{self.told}"

    def after(self, seq: int) -> Place:
        """Return the place behind another event of that number."""
        told = self.told + 1 if seq == self.seq else 1
        return Place(self.incarnation, seq, told)


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
    place = Place.of(request.headers.get("last-event-id", ""))
    stack = AsyncExitStack()
    try:
        try:
            followed = await stack.enter_async_context(follow(session, place))
        except UnknownCursorError:
            # The session was cleared since: the page begins anew, with a snapshot.
            place = None
            followed = await stack.enter_async_context(follow(session, place))
    except GreenroomError as exc:
        return JSONResponse({"error": exc.code, "message": str(exc)}, status_code=404)
    return StreamingResponse(
        stream(followed, place, stack),
        media_type="text/event-stream",
        headers={"cache-control": "no-store"},
    )


def follow(
    session: SessionHandle, place: Place | None
) -> AbstractAsyncContextManager[Follower]:
    """Follow from a snapshot, or from the number of which not all was told."""
    if place is None:
        return session.follow()
    return session.follow(after=place.seq - 1, incarnation=place.incarnation)


async def stream(
    followed: Follower, place: Place | None, stack: AsyncExitStack
) -> AsyncIterator[bytes]:
    """Encode what is followed; *stack* is closed with it."""
    async with stack:
        snapshot = followed.snapshot
        if snapshot is not None:
            place = Place(followed.incarnation, snapshot.seq + 1, 0)
            yield server_sent("snapshot", snapshot, place)
        assert place is not None, "without a place there is a snapshot"
        # Those of a number that was told in part come again.
        skipped = place.told
        told_in_part = place.seq
        async for event in followed:
            seq = getattr(event, "seq", None)
            name = str(event.__struct_config__.tag)
            if seq is None:
                yield server_sent(name, event, None)
            elif seq == told_in_part and skipped:
                skipped -= 1
            else:
                place = place.after(seq)
                yield server_sent(name, event, place)


def server_sent(name: str, event: Event | Snapshot, place: Place | None) -> bytes:
    """Encode one event; what is not durable has no id, so the last one holds."""
    number = "" if place is None else f"id: {place}\n"
    data = msgspec.json.encode(event).decode()
    return f"event: {name}\n{number}data: {data}\n\n".encode()


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
