"""What answers when no model is configured: a script that says that it is one."""

from __future__ import annotations

from typing import Final

from greenroom.actors.providers import Call, Halt, RehearsalProvider, Reply, Say, Use
from greenroom.protocol import ModelRequest, ToolMessage

from ._words import count_words

REHEARSAL_ID: Final = "rehearsal"


def rehearsal() -> RehearsalProvider:
    """Return a provider that looks at the workspace once and then says so."""
    return RehearsalProvider(_reply, id=REHEARSAL_ID)


def _reply(request: ModelRequest) -> Reply:
    last = request.messages[-1]
    if not isinstance(last, ToolMessage):
        return [
            Say("This is a rehearsal, not a model. It lists the workspace.\n"),
            Call("list", {"path": "."}),
            Use(input=0, output=0),
            Halt("tool_use"),
        ]
    lines = count_words(len(last.text.splitlines()), "line")
    return [
        Say(f"The list has {lines}. Configure a model to have real work done."),
        Use(input=0, output=0),
        Halt(),
    ]
