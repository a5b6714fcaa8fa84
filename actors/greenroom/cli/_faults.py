"""Faults as a user is told them: a sentence, and no traceback where none helps.

A `GreenroomError` explains itself, also in the group that a nursery makes of it. All
else is a bug and keeps its traceback, in the log too.
"""

from __future__ import annotations

import errno
import logging
import sys
from types import TracebackType
from typing import Literal, cast, final

from greenroom.actors.logs import JsonLines
from greenroom.protocol import GreenroomError, redacted

from ._harmless import harmless


def known_errors(error: BaseException) -> list[GreenroomError]:
    """Return what *error* is made of; empty if some of it does not explain itself."""
    if isinstance(error, GreenroomError):
        return [error]
    if not isinstance(error, BaseExceptionGroup):
        return []
    group = cast("BaseExceptionGroup[BaseException]", error)
    found = [known_errors(each) for each in group.exceptions]
    return [each for errors in found for each in errors] if all(found) else []


def is_only(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether *error* is a *kind*, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).split(kind)[1] is None
    return isinstance(error, kind)


def is_without_room(error: BaseException) -> bool:
    """Whether *error* says only that what was written to is full."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return all(map(is_without_room, group.exceptions))
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def log_to_stderr(form: Literal["text", "json"] = "text") -> None:
    """Show what the engine logs, in *form*; may be called again, with another one."""
    logger = logging.getLogger("greenroom")
    handler = next(
        (each for each in logger.handlers if isinstance(each, _Stderr)), None
    )
    if handler is None:
        handler = _Stderr(logging.WARNING)
        logger.addHandler(handler)
    as_json = form == "json"
    handler.setFormatter(JsonLines() if as_json else _Brief("%(message)s"))
    handler.prefix = "" if as_json else "greenroom: "


_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


@final
class _Brief(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))

    def formatException(self, ei: _ExcInfo | tuple[None, None, None]) -> str:
        known = [] if ei[1] is None else known_errors(ei[1])
        if known:
            return "\n".join(f"  {error}" for error in known)
        return super().formatException(ei)


@final
class _Stderr(logging.Handler):
    # Not a StreamHandler: that one keeps the stream it was made with.
    prefix = ""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(f"{self.prefix}{harmless(self.format(record))}", file=sys.stderr)
        except Exception:
            self.handleError(record)
