"""A gateway with a scripted model, for the tests here: run as a program of its own.

What the model says depends on the first word of the last message, so that a test
chooses its scene by what it sends.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from greenroom.actors.providers import (
    Call,
    Cue,
    Halt,
    Pause,
    RehearsalProvider,
    Say,
    Think,
    Use,
)
from greenroom.engine import open_engine
from greenroom.gateway import open_gateway, tokens_of
from greenroom.protocol import ModelRequest, TextPart, ToolMessage, UserMessage

BEAT: Final = 0.05
SPENT: Final = Use(input=2_300, output=140, cache_read=1_800)

Scene = Callable[[str, int], Sequence[Cue]]
"""What is said: of the whole message, and how many tools it has called by then."""

HOSTILE_TEXT: Final = (
    "<img src=x onerror=\"document.title='owned'\"><script>owned()</script>\n"
    "\x1b[31mred\x1b[0m \x1b]8;;https://evil.example\x07link\x1b]8;;\x07 \x9b2J\n"
    "pay \u202e001$ ot\u202c you, \u2066isolated\u2069, \u200binvisible\n"
    "[bank.example](https://evil.example/) [x](javascript:owned()) "
    "</div></article><style>*{display:none}</style>\n\n"
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643\u0645 \u05e9\u05dc\u05d5\u05dd\n\n"
)
LONG_LINE: Final = "W" * 90_000


def programme(text: str, calls: int) -> Sequence[Cue]:
    """Look around, write a file, and tell of it."""
    if calls == 0:
        return [
            Think("I look at what is there, then write it in the style of the house."),
            Say("First I look around.\n"),
            Call("list", {}),
            Call("read", {"path": "cast.txt"}),
            SPENT,
            Halt("tool_use"),
        ]
    if calls < 3:
        content = (
            "# Tonight\n\nThree voices, one lamp.\n\n- Ada directs\n- Alan prompts\n"
        )
        return [
            Say("A cast of three. I write the programme.\n"),
            Call("write", {"path": "programme.md", "content": content}),
            SPENT,
            Halt("tool_use"),
        ]
    return [
        Say(
            "The programme is **written**. It names, from `cast.txt`:\n\n"
            "1. Ada, who directs\n2. Grace, who manages the stage\n"
            "3. Alan, who prompts\n\nNothing else was changed.",
            chunk=9,
        ),
        SPENT,
        Halt(),
    ]


def question(text: str, calls: int) -> Sequence[Cue]:
    """Ask which ending it is to be."""
    if calls:
        return [Say("Then it ends that way."), SPENT, Halt()]
    options = [
        {"label": "happy", "description": "They meet again"},
        {"label": "sad", "description": "They do not"},
    ]
    asked = {"question": "How should it end?", "header": "The ending"}
    return [
        Call("ask_user", {**asked, "options": options}),
        SPENT,
        Halt("tool_use"),
    ]


def slow(text: str, calls: int) -> Sequence[Cue]:
    """Talk for a long time: ten seconds and more."""
    cues: list[Cue] = []
    for number in range(1, 201):
        cues += [Say(f"Verse {number} of the song.\n\n"), Pause(BEAT)]
    return [*cues, SPENT, Halt()]


def hostile(text: str, calls: int) -> Sequence[Cue]:
    """Say what would harm a page that believed it."""
    if calls:
        return [Say(HOSTILE_TEXT), Say(LONG_LINE), SPENT, Halt()]
    path = "a\u202etxt.exe<b>\x1b[2J"
    return [
        Think(HOSTILE_TEXT),
        Call("write", {"path": path, "content": HOSTILE_TEXT + LONG_LINE[:5_000]}),
        SPENT,
        Halt("tool_use"),
    ]


def plan(text: str, calls: int) -> Sequence[Cue]:
    """Make a plan, then work on it for a while."""
    if calls:
        return [*slow(text, calls)]
    steps = ("Read the play", "completed"), ("Build the stage", "in_progress")
    entries = [{"content": what, "status": status} for what, status in steps]
    return [
        Call("update_plan", {"entries": [*entries, {"content": "Sweep the floor"}]}),
        SPENT,
        Halt("tool_use"),
    ]


def echo(text: str, calls: int) -> Sequence[Cue]:
    """Say it again."""
    return [Say(f"You said: {text[:2_000]}", chunk=7), SPENT, Halt()]


SCENES: Final[Mapping[str, Scene]] = {
    "programme": programme,
    "question": question,
    "slow": slow,
    "hostile": hostile,
    "plan": plan,
}


def reply(request: ModelRequest) -> Sequence[Cue]:
    """Play the scene that the last message names."""
    text, calls = "", 0
    for message in request.messages:
        match message:
            case UserMessage(parts=parts):
                said = [part.text for part in parts if isinstance(part, TextPart)]
                text, calls = "\n".join(said), 0
            case ToolMessage():
                calls += 1
            case _:
                pass
    scene = SCENES.get(text.split(maxsplit=1)[0].lower() if text.split() else "", echo)
    return [Pause(BEAT), *scene(text, calls)]


async def serve(state: Path, port: int, tokens: str) -> None:
    """Serve until SIGTERM, and print the address once it can be reached."""
    provider = RehearsalProvider(reply)
    known = tokens_of(tokens) if tokens else ()
    async with (
        open_engine(state=state, provider=provider) as engine,
        open_gateway(engine, port=port, tokens=known) as gateway,
    ):
        print(gateway.url, flush=True)
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                return


def main() -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tokens", default="")
    arguments = parser.parse_args()
    trio.run(serve, arguments.state, arguments.port, arguments.tokens)


if __name__ == "__main__":
    main()
