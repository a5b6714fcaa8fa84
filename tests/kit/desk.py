"""A desk of ``greenroom attach`` in this process: gateway, keyboard and screen.

What is typed goes through a terminal of the system's, or through a pipe as a script's
lines do; what is shown is kept as it was written.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import attrs
import trio
from kit.gateway import served
from kit.rehearsal import Stage
from kit.remote import client_of, of_gateway
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.endpoints.gateway._access import Access, Token
from greenroom.cli._desk import Desk
from greenroom.cli._prompts import Asker, Lines
from greenroom.cli._remote import RemoteSession
from greenroom.cli._terminal import Terminal
from greenroom.cli._view import View
from greenroom.protocol.gateway import SCOPES, Scope

SECRET = "0123456789abcdef" * 2
PATIENCE = 60.0
"""Only of a test that fails."""


@attrs.define(eq=False)
class Screen:
    """What was written, and whoever waits for some of it."""

    text: str = ""
    _changed: trio.Event = attrs.field(factory=trio.Event)

    def write(self, text: str) -> None:
        self.text += text
        self._changed.set()

    async def until(self, *wanted: str, after: int = 0) -> int:
        """Wait until all of this was shown, in this order; return where it ends."""
        place = after
        for each in wanted:
            with trio.move_on_after(PATIENCE) as waiting:
                while self.text.find(each, place) < 0:
                    self._changed = trio.Event()
                    await self._changed.wait()
            assert not waiting.cancelled_caught, (each, self.text[place:])
            place = self.text.find(each, place) + len(each)
        return place


@attrs.define(eq=False)
class Seat:
    """Whoever sits at the desk."""

    stage: Stage
    desk: Desk
    screen: Screen
    _keyboard: int
    status: int | None = None
    left: trio.Event = attrs.field(factory=trio.Event)

    def type(self, *lines: str) -> None:
        """Type these lines."""
        os.write(self._keyboard, "".join(f"{line}\n" for line in lines).encode())

    def end_input(self) -> None:
        """Press Ctrl-D, or end the pipe."""
        if os.isatty(self._keyboard):
            os.write(self._keyboard, b"\x04")
        else:
            os.close(self._keyboard)
            self._keyboard = -1

    async def told(self, line: str, *wanted: str) -> None:
        """Type *line*, and wait until each of these is shown behind it."""
        place = len(self.screen.text)
        self.type(line)
        await self.screen.until(*wanted, after=place)

    async def hold(self) -> None:
        self.status = await self.desk.hold()
        self.left.set()


@asynccontextmanager
async def seated(
    stage: Stage,
    *,
    is_terminal: bool = True,
    json: bool = False,
    yes: bool = False,
    live: bool = False,
    columns: int = 80,
    scopes: tuple[Scope, ...] = SCOPES,
) -> AsyncGenerator[Seat]:
    """A desk at the session of *stage*; leaving it leaves the session alone."""
    access = Access("127.0.0.1", tokens=(Token.of(SECRET, scopes),))
    reads, types = os.openpty()[::-1] if is_terminal else os.pipe()
    screen, lines = Screen(), Lines(reads)
    own: set[str] = set()
    terminal = Terminal(
        screen.write,
        live=live,
        columns=lambda: columns,
        shows_user=lambda message: not is_terminal or message.id not in own,
    )
    view = View(stage.session.id, terminal, Asker(lines, terminal.ask), json)
    async with (
        served(stage.engine, access) as gateway,
        client_of(of_gateway(gateway), token=SECRET) as client,
    ):
        session = RemoteSession(client, stage.session.id)
        seat = Seat(stage, Desk(session, view, lines, yes, own), screen, types)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(seat.hold)
                await wait_all_tasks_blocked()
                yield seat
                nursery.cancel_scope.cancel()
        finally:
            os.close(reads)
            if seat._keyboard >= 0:
                os.close(seat._keyboard)
