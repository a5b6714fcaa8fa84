"""``greenroom attach``: look at a session of a gateway, and talk with it.

Whoever attaches is one of any number of watchers: the session goes on without it. At a
terminal a line is put into the inbox, and answers what waits for an answer. A script's
lines have their turns one after the other, and when its input has ended, and so has
what it said, the command ends with how that went.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

import trio

from greenroom.client import DEFAULT_URL, Client
from greenroom.protocol.gateway import (
    CreateSession,
    ListSessions,
    OneSession,
    SessionItem,
    SessionList,
)

from ._config import Config
from ._desk import Desk
from ._exit import CliError
from ._harmless import one_line
from ._prompts import Lines
from ._remote import RemoteSession, connecting, remote_session
from ._typed import place_in
from ._view import View

_OFFERED: Final = 20
_STANDARD_INPUT: Final = 0


def attach_command(arguments: argparse.Namespace, config: Config) -> int:
    """Attach to a session until the user leaves, and return the exit status."""
    url, session = place_of(arguments.place)
    return trio.run(_attach, url, session, arguments, config)


def place_of(words: list[str]) -> tuple[str, str | None]:
    """Return the URL and the session that ``[URL] [SESSION]`` name.

    Raises:
        CliError: they are too many, or in the other order.
    """
    url = DEFAULT_URL
    if words and "://" in words[0]:
        url, *words = words
    if len(words) > 1:
        raise CliError(
            "attach takes a URL and a session, in this order",
            hint=f"a URL is written as {DEFAULT_URL}",
        )
    return url, words[0] if words else None


async def _attach(
    url: str, target: str | None, arguments: argparse.Namespace, config: Config
) -> int:
    lines = Lines(_STANDARD_INPUT)
    async with connecting(url, arguments) as (client, outages):
        item = await _session(client, target, lines)
        own: set[str] = set()
        view = View.make(
            arguments,
            config,
            item.id,
            # At a terminal whoever typed it has it before their eyes.
            lambda message: not lines.is_terminal or message.id not in own,
        )
        outages.view = view
        desk = Desk(RemoteSession(client, item.id), view, lines, arguments.yes, own)
        if lines.is_terminal and not view.json:
            view.note("/help tells what can be typed; what runs goes on without you")
        return await desk.hold()


#### Which session


async def _session(client: Client, target: str | None, lines: Lines) -> SessionItem:
    if target is not None:
        return await remote_session(client, target)
    asked = ListSessions(limit=_OFFERED, archived=False)
    found = (await client.call("session/list", asked, SessionList)).sessions
    if lines.is_terminal:
        return await _choose(client, found, lines)
    if not found:
        raise CliError(
            "the gateway has no session",
            hint='begin one with: greenroom run --remote URL "PROMPT"',
        )
    return found[0]


async def _choose(
    client: Client, found: tuple[SessionItem, ...], lines: Lines
) -> SessionItem:
    # On standard error: what is chosen is no part of what is shown.
    for number, item in enumerate(found, 1):
        print(f"{number:>3}. {_about(item)}", file=sys.stderr)
    while found:
        print(
            "which one? (Enter: 1, n: a new one) ",
            end="",
            file=sys.stderr,
            flush=True,
        )
        line = await lines.read()
        if line.lower() == "n":
            break
        place = place_in(line or "1", len(found), "choose by number")
        if isinstance(place, int):
            return found[place]
        print(f"  {place}", file=sys.stderr)
    return (await client.call("session/create", CreateSession(), OneSession)).session


def _about(item: SessionItem) -> str:
    state = "waits for an answer" if item.has_open_interaction else item.state
    title = one_line(item.settings.title, 50) or "(no title)"
    return f"{item.id[:8]}  {state:<19}  {title}"
