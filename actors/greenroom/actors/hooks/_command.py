"""A hook that runs a program: the event as JSON on its standard input."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Final, final

import attrs
import msgspec
import trio

from greenroom.protocol import GreenroomError, HookEvent

from ._hooks import DEFAULT_SECONDS

MAX_ARGUMENTS: Final = 64

_PASSED: Final = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "TZ", "DISPLAY")


class HookFailedError(GreenroomError):
    """The program of a hook ended with an error, or could not be started."""

    code = "hook_failed"


@final
@attrs.frozen
class CommandHook:
    """Runs *command* for each event. What it prints is of no interest.

    Of *environment* it gets what programs need to find their way, and
    ``GREENROOM_HOOK``, the name of the event; never a provider's key.
    """

    command: tuple[str, ...]
    on: frozenset[str]
    seconds: float = DEFAULT_SECONDS
    environment: Mapping[str, str] = attrs.field(factory=lambda: os.environ)

    @property
    def name(self) -> str:
        """The program."""
        return self.command[0]

    async def tell(self, event: HookEvent) -> None:
        """Run the program and wait for its end.

        Raises:
            HookFailedError: it can't be started, or its exit code is not 0.
        """
        process = await self._start(event)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_write, process, msgspec.json.encode(event))
                await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            await _end(process)
        if process.returncode:
            raise HookFailedError(f"it ended with code {process.returncode}")

    async def _start(self, event: HookEvent) -> trio.Process:
        passed = {k: self.environment[k] for k in _PASSED if k in self.environment}
        passed["GREENROOM_HOOK"] = str(event.__struct_config__.tag)
        try:
            return await trio.lowlevel.open_process(
                list(self.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=passed,
                start_new_session=True,
            )
        except (OSError, ValueError) as exc:
            raise HookFailedError(f"it can't be started: {exc}") from exc


async def _write(process: trio.Process, data: bytes) -> None:
    assert process.stdin is not None
    try:
        async with process.stdin as stream:
            await stream.send_all(data)
    except trio.BrokenResourceError:
        # A program need not read what it is told.
        return


async def _end(process: trio.Process) -> None:
    with trio.CancelScope(shield=True):
        # Only one that has not ended: then the number of its group is surely its own.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if process.stdin is not None:
            await process.stdin.aclose()
