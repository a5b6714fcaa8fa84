"""``greenroom sessions``, ``search``, ``inspect``: looking, without an engine.

They read the state folder beside whoever runs on it, join nothing and change nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any, Final, NamedTuple

from greenroom.protocol import MessageId, RunId, SessionId, TapeEntry
from greenroom.protocol.context import StoredManifest
from greenroom.protocol.gateway import SessionItem
from greenroom.storage import (
    MessageHit,
    NoStoreError,
    Reader,
    SessionRow,
    Trail,
    messages_of_turn,
    open_reader,
)

from ._config import Config
from ._exit import CliError, ExitCode
from ._harmless import harmless, json_line, one_line
from ._hops import print_hops
from ._options import MAX_LISTED
from ._story import format_story, run_story, story_lines
from ._traces import print_traces, traces_of
from ._views import (
    VIEW_PREFIX,
    print_difference,
    print_view,
    print_views,
    views_of,
)
from ._waiting import print_waiting

_PAGE: Final = 256
_MAX_ENTRIES: Final = 200_000


class _Found(NamedTuple):
    session_id: SessionId
    run_id: RunId | None = None
    message_id: MessageId | None = None


def list_sessions(arguments: argparse.Namespace, config: Config) -> int:
    """List sessions, last used first."""
    try:
        with closing(open_reader(config.state)) as reader:
            rows = reader.sessions(
                arguments.limit,
                agent=arguments.agent,
                archived=arguments.archived,
                title=arguments.search,
            )
    except NoStoreError:
        rows = []
    if arguments.json:
        for row in rows:
            sys.stdout.write(json_line(row_values(row)))
    elif not rows:
        chosen = arguments.archived or arguments.agent or arguments.search
        what = "no such sessions" if chosen else "no sessions yet"
        print(f"{what} in {harmless(str(config.state))}")
    else:
        _print_table(rows)
    return ExitCode.OK


def search_command(arguments: argparse.Namespace, config: Config) -> int:
    """Find messages by their words."""
    with closing(open_reader(config.state)) as reader:
        given = arguments.session
        scope = None if given is None else named_session(reader, given)
        hits = reader.search_messages(arguments.query, scope, arguments.limit)
    if arguments.json:
        for hit in hits:
            sys.stdout.write(json_line(_hit_values(hit)))
    elif not hits:
        print("nothing was found")
    for hit in () if arguments.json else hits:
        said = datetime.fromtimestamp(hit.updated_at).strftime("%Y-%m-%d %H:%M")
        print(f"{hit.session_id}  {said}  {hit.role}  {one_line(hit.title, 50)}")
        print(f"    {one_line(hit.snippet)}")
    return ExitCode.OK


def inspect_command(arguments: argparse.Namespace, config: Config) -> int:
    """Tell what happened in a session or a run."""
    with closing(open_reader(config.state)) as reader:
        if arguments.target.startswith(VIEW_PREFIX):
            return _inspect_view(reader, arguments)
        if arguments.diff is not None:
            raise CliError(
                f"{one_line(arguments.target)!r} is no view, so it has no difference",
                hint="list the views of a session with inspect SESSION --views",
            )
        session_id, run_id, message_id = _find(reader, arguments.target)
        if message_id is not None:
            return _inspect_message(reader, session_id, message_id, arguments)
        if arguments.views:
            views = views_of(_entries(reader, session_id), run_id)
            print_views(views, as_json=arguments.json)
            return ExitCode.OK
        if arguments.traces:
            found = traces_of(reader.traces(session_id), run_id)
            print_traces(found, as_json=arguments.json)
            return ExitCode.OK
        lines = story_lines(_entries(reader, session_id))
        waiting = reader.pending_inputs(session_id).rows if run_id is None else ()
        if run_id is not None:
            lines = run_story(lines, run_id)
    if arguments.json:
        for line in (*lines, *waiting):
            sys.stdout.write(json_line(line))
    else:
        print(f"session {session_id}")
        print("\n".join(format_story(lines)))
        print_waiting(waiting)
    return ExitCode.OK


def _inspect_view(reader: Reader, arguments: argparse.Namespace) -> int:
    view = _view(reader, arguments.target)
    if arguments.diff is None:
        print_view(view, as_json=arguments.json)
    else:
        other = _view(reader, arguments.diff)
        print_difference(other, view, as_json=arguments.json)
    return ExitCode.OK


def _inspect_message(
    reader: Reader,
    session_id: SessionId,
    message_id: MessageId,
    arguments: argparse.Namespace,
) -> int:
    if arguments.traces:
        traces = reader.traces(session_id, message_id)
        print_traces(traces, as_json=arguments.json)
        return ExitCode.OK
    trail = Trail(messages_of_turn(reader, session_id, message_id))
    trail.take(_entries(reader, session_id))
    print_hops(trail.hops, as_json=arguments.json)
    return ExitCode.OK


def _view(reader: Reader, view_id: str) -> StoredManifest:
    entry = reader.view_entry(view_id)
    for stored in views_of([] if entry is None else [entry]):
        return stored
    raise CliError(
        f"there is no view {one_line(view_id)!r}",
        hint="list the views of a session with inspect SESSION --views",
    )


def beginning_with(
    target: str, rows: Sequence[SessionRow | SessionItem]
) -> SessionId | None:
    """Return the session whose id is *target* or, as no other, begins with it.

    Raises:
        CliError: several do.
    """
    found = [row.id for row in rows if target and row.id.startswith(target)]
    if target in found:
        return SessionId(target)
    if len(found) > 1:
        raise CliError(
            f"{one_line(target)!r} begins the ids of {len(found)} sessions",
            hint="give more of it; greenroom sessions lists them",
        )
    return found[0] if found else None


def named_session(reader: Reader, target: str) -> SessionId:
    """Return the session whose id is *target* or begins with it.

    Raises:
        CliError: there is none, or several.
    """
    if reader.session(SessionId(target)) is not None:
        return SessionId(target)
    found = beginning_with(target, reader.sessions(MAX_LISTED))
    if found is None:
        raise CliError(
            f"there is no session {one_line(target)!r}",
            hint="greenroom sessions lists the sessions",
        )
    return found


def _find(reader: Reader, target: str) -> _Found:
    if reader.session(SessionId(target)) is not None:
        return _Found(SessionId(target))
    of_run = reader.run_session(RunId(target))
    if of_run is not None:
        return _Found(of_run, RunId(target))
    rows = reader.sessions(MAX_LISTED)
    found = beginning_with(target, rows)
    if found is not None:
        return _Found(found)
    # Messages are known by session: they are looked for in those used last.
    for row in rows:
        if reader.message(row.id, target) is not None:
            return _Found(row.id, message_id=MessageId(target))
    raise CliError(
        f"there is no session, run or message {one_line(target)!r}",
        hint="greenroom sessions lists the sessions",
    )


def _entries(reader: Reader, session_id: SessionId) -> Iterator[TapeEntry]:
    after = 0
    while after < _MAX_ENTRIES:
        page = reader.page(session_id, after, _PAGE)
        yield from page.entries
        if not page.entries:
            return
        after = page.entries[-1].seq


def _hit_values(hit: MessageHit) -> dict[str, Any]:
    return {
        "sessionId": hit.session_id,
        "messageId": hit.message_id,
        "order": hit.order_seq,
        "role": hit.role,
        "title": hit.title,
        "snippet": hit.snippet,
        "updatedAt": hit.updated_at,
    }


def row_values(row: SessionRow) -> dict[str, Any]:
    """Return what is said of a session as JSON."""
    return {
        "id": row.id,
        "title": row.settings.title,
        "agent": row.settings.agent_id,
        "state": row.state,
        "archivedAt": row.archived_at,
        "workspace": row.settings.workspace,
        "provider": row.settings.provider,
        "model": row.settings.model,
        "createdAt": row.created_at,
        "updatedAt": row.updated_at,
        "messages": row.message_count,
        "inputTokens": row.input_tokens,
        "outputTokens": row.output_tokens,
        "waitsForAnswer": row.has_open_interaction,
    }


def _print_table(rows: list[SessionRow]) -> None:
    for row in rows:
        used = datetime.fromtimestamp(row.updated_at).strftime("%Y-%m-%d %H:%M")
        waits = "  waits for an answer" if row.has_open_interaction else ""
        title = one_line(row.settings.title, 50)
        print(f"{row.id}  {used}  {row.message_count:>4} messages  {title}{waits}")
