"""The session of ``greenroom serve --demo``: a script plays the model, and says so.

Whatever is said to it, it does the same work: it thinks, plans, reads two files, asks
a question, writes a file and runs a command with your permission. The files, the
tools, the permissions and the durability are real.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from greenroom.actors.providers import (
    Call,
    Cue,
    Halt,
    Pause,
    RehearsalProvider,
    Reply,
    Say,
    Think,
    Use,
)
from greenroom.protocol import ModelRequest, ToolMessage, UserMessage

from ._rehearsal import REHEARSAL_ID

DEMO_TITLE: Final = "A scripted session"
DEMO_PROMPT: Final = "Read both files, write tonight's programme, and count its words."
DEMO_MODEL: Final = "script"

_BEAT: Final = 0.4
"""Seconds between two things, so that a person can follow."""

_FILES: Final = {
    "poem.txt": "The lamp is lit, the chorus waits,\nthe prompter holds the page.\n",
    "cast.txt": "Ada: director\nGrace: stage manager\nAlan: prompter\n",
}
_STEPS: Final = ("Read the files", "Ask who is on first", "Write the programme")


def write_demo_files(workspace: Path) -> None:
    """Put the files there that the script reads."""
    for name, text in _FILES.items():
        (workspace / name).write_text(text)


def scripted() -> RehearsalProvider:
    """Return the provider that plays the script, for any number of sessions."""
    return RehearsalProvider(_reply, id=REHEARSAL_ID)


def _reply(request: ModelRequest) -> Reply:
    rounds = _rounds_since_the_user(request)
    script = _script()
    cues = script[min(rounds, len(script) - 1)]
    return [Pause(_BEAT), *cues, Use(input=300 + 40 * rounds, output=60)]


def _rounds_since_the_user(request: ModelRequest) -> int:
    count = 0
    previous: object = None
    for message in reversed(request.messages):
        if isinstance(message, UserMessage):
            break
        # Results of one round stand together.
        if isinstance(message, ToolMessage) and not isinstance(previous, ToolMessage):
            count += 1
        previous = message
    return count


def _script() -> tuple[list[Cue], ...]:
    question = {
        "question": "Who is on first?",
        "header": "Cast",
        "options": [
            {"label": "Ada", "description": "the director"},
            {"label": "Grace", "description": "the stage manager"},
        ],
    }
    programme = "# Tonight\n\nThree voices, one lamp.\n"
    return (
        [
            Think("Two files are named. I look before I write anything."),
            Say("This is a script, not a model. First I make a plan.\n", chunk=4),
            Call("update_plan", {"entries": _plan(0)}),
            Halt("tool_use"),
        ],
        [
            Say("I read both files at once.\n", chunk=4),
            Call("read", {"path": "poem.txt"}),
            Call("read", {"path": "cast.txt"}),
            Halt("tool_use"),
        ],
        [
            Say("A short poem, and a cast of three. One thing is open.\n", chunk=4),
            Call("update_plan", {"entries": _plan(1)}),
            Call("ask_user", question),
            Halt("tool_use"),
        ],
        [
            Say("Then I write the programme, if you let me.\n", chunk=4),
            Call("write", {"path": "programme.md", "content": programme}),
            Halt("tool_use"),
        ],
        [
            Call("shell", {"command": "wc -w programme.md poem.txt"}),
            Call("update_plan", {"entries": _plan(3)}),
            Halt("tool_use"),
        ],
        [
            Say(
                "The programme is written, and the shell counted its words. Every step "
                "was on disk before the next one began: close this page in between, "
                "open it again, and it goes on where it was. Without --demo the same "
                "holds when the gateway itself is stopped or killed.\n",
                chunk=6,
            ),
            Halt(),
        ],
    )


def _plan(done: int) -> list[dict[str, str]]:
    def status(place: int) -> str:
        if place < done:
            return "completed"
        return "in_progress" if place == done else "pending"

    return [
        {"content": step, "status": status(place)} for place, step in enumerate(_STEPS)
    ]
