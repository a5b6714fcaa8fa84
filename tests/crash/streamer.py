"""An engine that streams words by a clock of its own, and kills itself at a time.

    streamer.py STATE WORKSPACE SECONDS

A word is said every 50 ms of the clock; SIGKILL comes at SECONDS after the first.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import trio
from trio.testing import MockClock

from greenroom.engine import open_engine
from greenroom.testing import Cue, Hang, Pause, RehearsalProvider, Say

WORD_SECONDS = 0.05
WORDS = 200


async def main(state: str, workspace: str, seconds: float) -> None:
    """Stream until the end of this process."""
    reply: list[Cue] = []
    for number in range(WORDS):
        reply += [Say(f"w{number} "), Pause(WORD_SECONDS)]
    provider = RehearsalProvider([[*reply, Hang()]])
    async with open_engine(
        state=state, provider=provider, builtin=False, threads=False
    ) as engine:
        session = await engine.create_session(workspace=Path(workspace))
        os.write(1, f"{session.id}\n".encode())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.prompt, "go")
            await trio.sleep(seconds)
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    trio.run(
        main,
        sys.argv[1],
        sys.argv[2],
        float(sys.argv[3]),
        clock=MockClock(autojump_threshold=0),
    )
