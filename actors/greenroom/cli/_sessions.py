"""``greenroom sessions``: listing, changing, writing out and reading in.

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
from pathlib import Path
from typing import Any, BinaryIO, Final

import attrs

from greenroom.actors.kernel import SystemClock, SystemIds
from greenroom.engine import SessionHeldError, SessionNotFoundError
from greenroom.protocol import SessionId, SessionSettings, chosen_agent
from greenroom.storage import (
    Held,
    Imported,
    Member,
    SessionRow,
    Store,
    archive_session,
    export_session,
    import_sessions,
    open_reader,
    open_store,
    read_app_settings,
    rename_session,
)

from ._compact import compact_command
from ._config import Config
from ._exit import CliError, ExitCode
from ._harmless import json_line, one_line
from ._import import make_findable
from ._lifecycle import delete_command, fork_command, move_command
from ._look import list_sessions, named_session, row_values
from ._rewind import clear_command, rewind_command

Command = Callable[[argparse.Namespace, Config], int]
_Outcome = SessionRow | Held | None
_Change = Callable[[Store, Member, SessionId], _Outcome]

_TTL: Final = 3_600.0
"""Seconds that a change may take before others may think it dead."""


def sessions_command(arguments: argparse.Namespace, config: Config) -> int:
    """List sessions, or do what the action says."""
    return _ACTIONS[arguments.action or "list"](arguments, config)


@contextmanager
def _joined(config: Config) -> Generator[tuple[Store, Member]]:
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
    open_reader(config.state).close()  # A change makes no state where there is none.
    with _joined(config) as (store, member):
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


#### Files


def _export(arguments: argparse.Namespace, config: Config) -> int:
    with closing(open_reader(config.state)) as reader:
        scope = named_session(reader, arguments.session)
        lines = map(json_line, export_session(reader, scope))
        if arguments.file == "-":
            sys.stdout.writelines(lines)
            return ExitCode.OK
        try:
            with open(arguments.file, "x", encoding="utf-8", opener=_private) as stream:
                stream.writelines(lines)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as exc:
            raise CliError(
                f"{arguments.file!r} can't be written: {exc.strerror}",
                hint="name a file that is not there yet",
            ) from exc
    return ExitCode.OK


def _import(arguments: argparse.Namespace, config: Config) -> int:
    with _opened(arguments.file) as stream, _joined(config) as (store, member):
        defaults = SessionSettings(
            agent_id=chosen_agent(None, read_app_settings(store).default_agent),
            title="Imported session",
            workspace=str(arguments.cwd or Path.cwd()),
            provider=config.provider or "",
            model=config.model or "default",
        )
        done = import_sessions(
            store,
            member,
            stream,
            defaults,
            new_id=SystemIds().uuid,
            now=SystemClock().now(),
        )
        make_findable(store)
    _report(done, as_json=arguments.json)
    if not done.sessions:
        raise CliError(
            f"there is no session in {one_line(arguments.file)!r}",
            hint="give a file that greenroom sessions export wrote",
        )
    return ExitCode.RUN_FAILED if done.problem_count else ExitCode.OK


def _report(done: Imported, *, as_json: bool) -> None:
    for problem in done.problems:
        text = f"line {problem.line} {problem.text}"
        print(f"greenroom: {one_line(text, 400)}", file=sys.stderr)
    more = done.problem_count - len(done.problems)
    if more:
        print(f"greenroom: and {more} problems more like these", file=sys.stderr)
    for session in done.sessions:
        if as_json:
            sys.stdout.write(json_line(attrs.asdict(session)))
        else:
            entries = f"{session.entries} entries, {session.left_out} left out"
            print(f"{session.id}  {one_line(session.title, 50)}  ({entries})")


@contextmanager
def _opened(file: str) -> Generator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        stream = open(file, "rb")  # noqa: SIM115 - closed below, errors apart
    except (OSError, ValueError) as exc:
        raise CliError(f"{one_line(file)!r} can't be read: {exc}") from exc
    with stream:
        yield stream


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _stamp() -> dict[str, Any]:
    return {"revision": SystemIds().uuid(), "now": SystemClock().now()}


_ACTIONS: Final[Mapping[str, Command]] = {
    "list": list_sessions,
    "rename": _rename,
    "archive": _archive,
    "unarchive": _archive,
    "fork": fork_command,
    "move": move_command,
    "rewind": rewind_command,
    "compact": compact_command,
    "clear": clear_command,
    "delete": delete_command,
    "export": _export,
    "import": _import,
}
