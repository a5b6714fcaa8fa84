"""What a workspace says to agents: its ``AGENTS.md``, read quickly or not at all."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from typing import Final, final

import attrs
import trio

from ._ports import Work

_LOG: Final = logging.getLogger("greenroom.skills")

INSTRUCTIONS_FILE: Final = "AGENTS.md"
READ_SECONDS: Final = 0.2
"""How long a turn waits for the file; after that it begins without (SKL-09)."""

FRESH_SECONDS: Final = 30.0
"""How long what was read is taken for what is there."""

MAX_INSTRUCTIONS: Final = 32_000
"""Characters of the file."""

MAX_WORKSPACES: Final = 256
"""Files that are remembered."""


@attrs.frozen
class _Read:
    until: float
    text: str


@final
@attrs.define(eq=False)
class Environment:
    """The instructions of workspaces; time is trio's."""

    _work: Work
    _read: dict[Path, _Read] = attrs.field(factory=dict[Path, _Read], init=False)

    async def instructions(self, workspace: Path) -> str:
        """Return what *workspace* says; empty when it says nothing in time."""
        known = self._read.get(workspace)
        if known is not None and trio.current_time() < known.until:
            return known.text
        with trio.move_on_after(READ_SECONDS):
            text = await self._work.run(lambda: read_instructions(workspace))
            self._keep(workspace, text)
            return text
        _LOG.warning("%s of %s took too long to read", INSTRUCTIONS_FILE, workspace)
        return ""

    def _keep(self, workspace: Path, text: str) -> None:
        if len(self._read) >= MAX_WORKSPACES:
            del self._read[min(self._read, key=lambda each: self._read[each].until)]
        self._read[workspace] = _Read(trio.current_time() + FRESH_SECONDS, text)


def read_instructions(workspace: Path) -> str:
    """Return the text of the file; empty when there is none that can be read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(workspace / INSTRUCTIONS_FILE, flags)
    except OSError:
        return ""
    with open(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        content = stream.read(4 * MAX_INSTRUCTIONS)
    return content.decode("utf-8", "replace")[:MAX_INSTRUCTIONS].strip()
