"""The steps between an accepted input and its first request, in their order."""

from __future__ import annotations

from typing import Final

import attrs
import pytest
from kit.rehearsal import Stage, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.engine import SlidingWindow
from greenroom.testing import Halt, Say

DONE: Final = [Say("done"), Halt()]
OF_A_RUN: Final = [
    "request numbers: message/recorded",
    "resources",
    "start fact",
    "memory: execution/run_started",
    "compaction",
    "view",
    "asked: view/assembled",
    "asked: message/recorded",
]
STEPS: Final = {
    "prompt": ["attachments", "messages", *OF_A_RUN],
    "queue": [
        "history: input/recorded",
        "claim",
        "messages: input/recorded",
        *OF_A_RUN,
    ],
}
"""Each with what the tape had got before it; the last one is the end of the run."""


def traced(stage: Stage) -> list[str]:
    """Note each step from now on, with what the tape has got before it, if anything."""
    loaded = stage.session._sessions.loaded(stage.session.id)
    assert loaded is not None
    trace: list[str] = []
    known = len(stage.tape())

    def preparing(step: str | None) -> None:
        nonlocal known
        names = stage.names()
        new, known = names[known:], len(names)
        trace.append(f"{step or 'asked'}: {new[-1]}" if new else step or "asked")

    ports = loaded.session.ports
    loaded.session.ports = attrs.evolve(ports, preparing=preparing)
    return trace


@pytest.mark.parametrize("how", STEPS)
async def test_a_turn_is_prepared_in_one_order(tmp_path, how):
    async with open_stage(tmp_path, replies(DONE), compaction=SlidingWindow()) as stage:
        trace = traced(stage)
        await getattr(stage.session, how)("go")
        await wait_all_tasks_blocked()
        assert trace == STEPS[how]
