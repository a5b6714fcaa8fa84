"""``greenroom sessions``: listing them, and changing one that nobody has loaded.

A change joins the store for a moment, as an engine would, and leaves it. A session
that an engine has loaded is that engine's: the command says whose, and changes
nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

from greenroom.actors.kernel import SystemClock, SystemIds
from greenroom.engine import SessionHeldError, SessionNotFoundError
from greenroom.protocol import SessionId
from greenroom.storage import (
    Held,
    Member,
    SessionRow,
    Store,
    archive_session,
    open_reader,
    open_store,
    rename_session,
)

from ._config import Config
from ._exit import ExitCode
from ._harmless import json_line, one_line
from ._look import list_sessions, named_session, row_values

Command = Callable[[argparse.Namespace, Config], int]
_Outcome = SessionRow | Held | None
_Change = Callable[[Store, Member, SessionId], _Outcome]

_TTL: Final = 3_600.0
"""Seconds that a change may take before others may think it dead."""


def sessions_command(arguments: argparse.Namespace, config: Config) -> int:
    """List sessions, or do what the action says."""
    return _ACTIONS[arguments.action or "list"](arguments, config)


@contextmanager
def joined(config: Config) -> Generator[tuple[Store, Member]]:
    """Be in the store of the state folder, which must be there already."""
    open_reader(config.state).close()
    with closing(open_store(config.state)) as store:
        now = SystemClock().now()
        node = f"greenroom sessions (process {os.getpid()})"
        member = store.join(node, "", _TTL, now=now)
        try:
            yield store, member
        finally:
            store.leave(member, now=SystemClock().now())


def _rename(arguments: argparse.Namespace, config: Config) -> int:
    def rename(store: Store, member: Member, scope: SessionId) -> _Outcome:
        return rename_session(store, member, scope, arguments.title, **_stamp())

    return _change(arguments, config, rename)


def _archive(arguments: argparse.Namespace, config: Config) -> int:
    archived = arguments.action == "archive"

    def move(store: Store, member: Member, scope: SessionId) -> _Outcome:
        return archive_session(store, member, scope, archived=archived, **_stamp())

    return _change(arguments, config, move)


def _change(arguments: argparse.Namespace, config: Config, change: _Change) -> int:
    with joined(config) as (store, member):
        scope = named_session(store, arguments.session)
        row = change(store, member, scope)
    if row is None:
        raise SessionNotFoundError(scope)
    if isinstance(row, Held):
        raise SessionHeldError(scope, row.owner)
    if arguments.json:
        sys.stdout.write(json_line(row_values(row)))
    else:
        away = ", archived" if row.archived_at is not None else ""
        print(f"{row.id}  {one_line(row.settings.title, 50)}{away}")
    return ExitCode.OK


def _stamp() -> dict[str, Any]:
    return {"revision": SystemIds().uuid(), "now": SystemClock().now()}


_ACTIONS: Final[Mapping[str, Command]] = {
    "list": list_sessions,
    "rename": _rename,
    "archive": _archive,
    "unarchive": _archive,
}
