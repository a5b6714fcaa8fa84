"""A kill in the middle of an answer loses at most one interval of flushing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from crash.streamer import WORD_SECONDS

from greenroom.engine import open_engine
from greenroom.protocol import TextBlock

STREAMER = [sys.executable, "-P", str(Path(__file__).with_name("streamer.py"))]
FLUSH_SECONDS = 0.6
PATIENCE = 60.0


def killed_at(folder: Path, seconds: float) -> str:
    """Let an engine stream until it kills itself; return its session."""
    done = subprocess.run(
        [*STREAMER, str(folder / "state"), str(folder), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    return done.stdout.strip()


@pytest.mark.contract("PER-05")
@pytest.mark.parametrize("at", [0.599, 0.601, 1.199, 1.201, 3.599])
async def test_a_kill_loses_at_most_what_was_said_since_the_last_flush(
    tmp_path: Path, at: float
) -> None:
    session_id = killed_at(tmp_path, at)
    async with open_engine(state=tmp_path / "state", threads=False) as engine:
        messages = await engine.session(session_id).messages()
    assert [m.status for m in messages] == ["sent", "error"]
    texts = [b.text for b in messages[1].blocks if isinstance(b, TextBlock)]
    kept = "".join(texts).split()
    assert kept == [f"w{number}" for number in range(len(kept))]
    said_before_the_flush = (at - at % FLUSH_SECONDS) / WORD_SECONDS
    assert len(kept) >= int(said_before_the_flush) - 1
    assert len(kept) <= at / WORD_SECONDS + 1
