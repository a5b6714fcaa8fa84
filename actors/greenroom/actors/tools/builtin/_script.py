"""Run one shell script: capture its output, and leave nothing of it behind.

A small program, `_keeper`, stands between the engine and the shell; it ends
everything the script started when its control pipe ends, which also happens when the
engine is killed. The result is there when the leader exits and 100 ms have been
given to late output: an inherited pipe that stays open is nobody's business. Output
and errors share one pipe, so they stay in the order they were written in.

On every way out, cancellation included, `run_script` first ends what was started and
then returns or raises; that takes 3 s at most.
"""

from __future__ import annotations

import codecs
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from math import inf
from pathlib import Path
from typing import Final, final

import attrs
import trio

from greenroom.protocol import safe_text

from .._excerpt import HeadAndTail

MARKER: Final = "GREENROOM_OPERATION"
"""The environment variable that says which operation a process belongs to."""

LATE_OUTPUT_SECONDS: Final = 0.1
TERM_SECONDS: Final = 0.5
"""Between asking politely and killing."""

HEAD_BYTES: Final = 262_144
TAIL_BYTES: Final = 262_144

_KEEPER: Final = Path(__file__).with_name("_keeper.py")
_KEEPER_SECONDS: Final = 2.5
"""How long the keeper may take to end everything; it gives up before."""
_SCAN_SECONDS: Final = 0.5
_CHUNK: Final = 65_536
_SHOW_EVERY: Final = 0.05
_MAX_SHOWN: Final = 4_096


@final
@attrs.frozen
class Script:
    """What to run, and where."""

    text: str
    shell: str
    folder: Path
    environment: Mapping[str, str]
    marker: str
    seconds: float


@final
@attrs.frozen
class Ended:
    """How a script ended."""

    output: str
    code: int | None
    """Exit code, negative for a signal; ``None`` if that was not to be learnt."""
    timed_out: bool


@final
@attrs.define(eq=False)
class _Keeper:
    process: trio.Process
    marker: str
    control: int | None
    status: trio.lowlevel.FdStream
    output: trio.lowlevel.FdStream
    leader: int = 0


async def run_script(script: Script, show: Callable[[str], None]) -> Ended:
    """Run *script* and return how it ended; *show* gets its output as it comes.

    Raises:
        OSError: nothing was started.
    """
    captured = HeadAndTail(HEAD_BYTES, TAIL_BYTES)
    keeper = await _start(script)
    try:
        async with trio.open_nursery() as nursery:
            drained = trio.Event()
            nursery.start_soon(_drain, keeper.output, captured, show, drained)
            code = None
            with trio.move_on_after(script.seconds) as limit:
                code = await _exit_code(keeper)
            if not limit.cancelled_caught:
                with trio.move_on_after(LATE_OUTPUT_SECONDS):
                    await drained.wait()
            await _end(keeper)
            # What was written while it ended is in the pipe by now.
            with trio.move_on_after(LATE_OUTPUT_SECONDS):
                await drained.wait()
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await _end(keeper)
            await keeper.output.aclose()
            await keeper.status.aclose()
    return Ended(captured.text(), code, limit.cancelled_caught)


#### Start and end


async def _start(script: Script) -> _Keeper:
    with ExitStack() as theirs, ExitStack() as ours:
        file = theirs.enter_context(tempfile.TemporaryFile())
        file.write(script.text.encode())
        file.seek(0)
        control_read, control_write = _pipe(theirs, ours)
        output_read, output_write = _pipe(ours, theirs)
        status_read, status_write = _pipe(ours, theirs)
        process = await trio.lowlevel.open_process(
            [
                *(sys.executable, "-I", "-S", _KEEPER, script.shell),
                *(str(file.fileno()), str(status_write), str(TERM_SECONDS)),
            ],
            stdin=control_read,
            stdout=output_write,
            stderr=subprocess.STDOUT,
            pass_fds=(file.fileno(), status_write),
            cwd=script.folder,
            env={**script.environment, MARKER: script.marker},
            start_new_session=True,
        )
        ours.pop_all()
    return _Keeper(
        process=process,
        marker=script.marker,
        control=control_write,
        status=trio.lowlevel.FdStream(status_read),
        output=trio.lowlevel.FdStream(output_read),
    )


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


async def _end(keeper: _Keeper) -> None:
    """Have everything ended and the keeper gone. Doing it again does nothing."""
    if keeper.control is not None:
        os.close(keeper.control)
        keeper.control = None
    with trio.move_on_after(_KEEPER_SECONDS):
        await keeper.process.wait()
    if keeper.process.returncode != 0:
        keeper.process.kill()
        await keeper.process.wait()
        # The script took its keeper along, or outran it: look for the marker.
        await trio.to_thread.run_sync(_kill_marked, keeper.marker, keeper.leader)


async def _exit_code(keeper: _Keeper) -> int | None:
    said = b""
    while chunk := await keeper.status.receive_some(1_024):
        said = (said + chunk)[:1_024]
        for line in said.split(b"\n")[:-1]:
            word, _, number = line.partition(b" ")
            if word == b"exited":
                return int(number)
            keeper.leader = int(number)
    return None


def _kill_marked(marker: str, leader: int) -> None:
    """Kill what carries *marker*; where there is no /proc, the leader's group."""
    if not os.path.isdir("/proc/self"):
        with suppress(OSError):
            os.killpg(leader, signal.SIGKILL)
        return
    give_up = time.monotonic() + _SCAN_SECONDS
    while (left := _marked(marker)) and time.monotonic() < give_up:
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _marked(marker: str) -> list[int]:
    wanted = f"{MARKER}={marker}".encode()
    found: list[int] = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        # A zombie has an empty environment: it is not found again.
        with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if wanted in file.read().split(b"\0"):
                found.append(int(name))
    return found


#### Output


async def _drain(
    output: trio.lowlevel.FdStream,
    captured: HeadAndTail,
    show: Callable[[str], None],
    drained: trio.Event,
) -> None:
    live = _Live(show)
    try:
        while True:
            live.show_if_due(trio.current_time())
            with trio.move_on_at(live.due):
                chunk = await output.receive_some(_CHUNK)
                if not chunk:
                    break
                captured.add(chunk)
                live.add(chunk, trio.current_time())
    finally:
        live.show_if_due(inf)
    drained.set()


@final
@attrs.define(eq=False)
class _Live:
    """Output for watchers: joined, at most one piece each 50 ms, the newest part."""

    _show: Callable[[str], None] = attrs.field(alias="show")
    due: float = attrs.field(default=inf, init=False)
    """When what is waiting is to be shown; never, when nothing is."""
    _shown_at: float = attrs.field(default=-inf, init=False)
    _waiting: str = attrs.field(default="", init=False)
    _decoder: codecs.IncrementalDecoder = attrs.field(
        factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"), init=False
    )

    def add(self, chunk: bytes, now: float) -> None:
        """Take in output; of much, only the end is kept."""
        self._waiting += safe_text(self._decoder.decode(chunk[-_MAX_SHOWN:]))
        if len(chunk) > _MAX_SHOWN or len(self._waiting) > _MAX_SHOWN:
            self._waiting = f"[…]{self._waiting[-_MAX_SHOWN:]}"
        if self._waiting:
            self.due = max(now, self._shown_at + _SHOW_EVERY)

    def show_if_due(self, now: float) -> None:
        """Show what is waiting, if its time has come."""
        if self._waiting and now >= self.due:
            self._show(self._waiting)
            self._waiting, self.due, self._shown_at = "", inf, min(now, self.due)
