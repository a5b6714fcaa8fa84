"""What log records say beside their sentence: whose session, message, run, operation.

Records of the loggers in `LOGGERS`, which are all of the engine's, carry four
attributes, for whatever handler an embedder has: ``session_id``, ``message_id``,
``run_id`` and ``operation_id``; ``None`` where one does not apply. They are those of
the task that logs (`bind_log_ids`), unless the record says its own (`of_session`).

Nothing here writes a log or sets up a handler; `JsonLines` is a formatter for one.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, final

import attrs
import msgspec

from greenroom.protocol import redacted, safe_text

LOGGERS: Final = tuple(
    f"greenroom.{part}"
    for part in (
        "agents",
        "context",
        "endpoints",
        "hooks",
        "kernel",
        "lifecycle",
        "memory",
        "runs",
        "sessions",
        "skills",
        "store",
        "tools",
    )
)
"""All loggers of the engine."""

MAX_MESSAGE: Final = 16_000
"""Characters of a message, and of a traceback, in a line of JSON."""


@attrs.frozen
class LogIds:
    """Whose a log record is."""

    session_id: str | None = None
    message_id: str | None = None
    """The assistant's message that the run works on."""
    run_id: str | None = None
    operation_id: str | None = None
    """A tool call of the run: its request and the provider's id, as in the tree."""


_NOBODY: Final = LogIds()
_FIELDS: Final = tuple(field.name for field in attrs.fields(LogIds))
_CURRENT: Final[ContextVar[LogIds]] = ContextVar("greenroom_log_ids", default=_NOBODY)


def bind_log_ids(ids: LogIds) -> None:
    """Say whose the records of this task are from now on, and of tasks it starts.

    For the beginning of a task: there is no way back, the task's end is.
    """
    _CURRENT.set(ids)


def bind_operation(operation_id: str) -> None:
    """Say which operation of the run this task is."""
    _CURRENT.set(attrs.evolve(_CURRENT.get(), operation_id=operation_id))


def log_ids() -> dict[str, str | None]:
    """Return what a record of this task says, for one that is written elsewhere."""
    return attrs.asdict(_CURRENT.get())


def of_session(session_id: str) -> dict[str, str | None]:
    """Return what a record of this session says (``extra``), whatever the task is."""
    return attrs.asdict(LogIds(session_id))


def ids_of(record: logging.LogRecord) -> dict[str, str]:
    """Return the ids that *record* carries."""
    values = ((name, getattr(record, name, None)) for name in _FIELDS)
    return {name: str(value) for name, value in values if value is not None}


def _add_ids(record: logging.LogRecord) -> bool:
    ids = _CURRENT.get()
    for name in _FIELDS:
        if not hasattr(record, name):
            setattr(record, name, getattr(ids, name))
    return True


# Here and not where they are used: the kernel, for one, knows nothing of sessions.
for _name in LOGGERS:
    logging.getLogger(_name).addFilter(_add_ids)


@final
class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON, without secrets.

    Its keys: ``time`` (UTC, RFC 3339), ``level``, ``logger``, ``message``, the ids that
    apply, and ``error`` with the traceback, if there is one. What has the shape of a
    key or a password is taken out, and long texts are cut.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return *record* as a line, without its end."""
        at = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _bounded(record.getMessage()),
            **ids_of(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = _bounded(self.formatException(record.exc_info))
        return msgspec.json.encode(line).decode()


def _bounded(text: str) -> str:
    return redacted(safe_text(text[: 2 * MAX_MESSAGE]))[:MAX_MESSAGE]
