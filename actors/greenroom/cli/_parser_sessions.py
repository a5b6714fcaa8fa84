"""The grammar of ``greenroom sessions``: what is done with sessions."""

from __future__ import annotations

import argparse
from typing import Final

from ._options import (
    MAX_LISTED,
    Actions,
    SubParser,
    add_choices,
    add_json,
    add_state,
    add_who,
    count,
    folder,
)


def sessions(parser: SubParser) -> None:
    _add_list(parser, limit=20)
    add_choices(parser, _SESSION_ACTIONS)


def _add_list(parser: SubParser, *, limit: int | None = None) -> None:
    absent = argparse.SUPPRESS if limit is None else None
    parser.add_argument(
        "--limit",
        type=count(MAX_LISTED),
        default=limit or argparse.SUPPRESS,
        metavar="N",
        help="how many, newest first (default: 20)",
    )
    parser.add_argument(
        "--archived",
        action="store_true",
        default=absent or False,
        help="those that were put away, instead of the others",
    )
    parser.add_argument(
        "--agent", metavar="ID", default=absent, help="those of this agent"
    )
    parser.add_argument(
        "--search",
        metavar="TEXT",
        default=absent or "",
        help="those with TEXT in their title",
    )
    add_json(parser, "print each session as one line of JSON", default=absent or False)
    if limit is not None:
        add_state(parser)


def _rename(parser: SubParser) -> None:
    _add_session(parser)
    parser.add_argument("title", metavar="TITLE", help="the new title")


def _add_session(parser: SubParser) -> None:
    parser.add_argument(
        "session", metavar="SESSION", help="the session's id, or how it begins"
    )


def _export(parser: SubParser) -> None:
    _add_session(parser)
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default="-",
        help="a file that is not there yet (default: standard output)",
    )


def _import(parser: SubParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="what export wrote; - is standard input"
    )
    parser.add_argument(
        "--cwd",
        type=folder,
        metavar="FOLDER",
        default=None,
        help="the folder that their file tools may touch (default: the current one)",
    )


def _fork(parser: SubParser) -> None:
    _add_session(parser)
    parser.add_argument(
        "--through",
        metavar="MESSAGE",
        default=None,
        help="the id of the last message that is copied (default: all)",
    )
    parser.add_argument(
        "--rounds",
        metavar="N",
        type=int,
        default=None,
        help="of that message only its first rounds: requests to the model, with the"
        " results of their calls",
    )
    _add_done(parser)


def _move(parser: SubParser) -> None:
    parser.add_argument(
        "session",
        metavar="SESSION",
        nargs="?",
        default=None,
        help="its id; how it begins is enough",
    )
    parser.add_argument("agent", metavar="AGENT", help="who has it from then on")
    parser.add_argument(
        "--all-of",
        metavar="AGENT",
        default=None,
        help="move all sessions of this agent; empty ones are deleted",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        default=False,
        help="with --all-of: only tell what it would do",
    )
    _add_done(parser)


def _delete(parser: SubParser) -> None:
    _add_session(parser)
    _add_done(parser)


def _rewind(parser: SubParser) -> None:
    _add_session(parser)
    parser.add_argument(
        "message",
        metavar="MESSAGE",
        nargs="?",
        default=None,
        help="the id of the message that is the last one then, the end of a turn",
    )
    parser.add_argument(
        "--to-start",
        action="store_true",
        default=False,
        help="take everything back",
    )
    parser.add_argument(
        "--files",
        action="store_true",
        default=False,
        help="put back what write and edit changed, unless a file was changed since",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        default=False,
        help="only tell what it would do, with the diffs of files",
    )
    _add_done(parser)


def _compact(parser: SubParser) -> None:
    _add_session(parser)
    parser.add_argument(
        "focus",
        metavar="FOCUS",
        nargs="*",
        default=[],
        help="what is important, for whoever makes the summary",
    )
    parser.add_argument(
        "--undo",
        action="store_true",
        default=False,
        help="send again what the newest compaction has hidden",
    )
    add_who(parser)
    _add_done(parser)


def _clear(parser: SubParser) -> None:
    _add_session(parser)
    _add_done(parser)


def _add_done(parser: SubParser) -> None:
    told = "print what was done as one line of JSON"
    add_json(parser, told, default=argparse.SUPPRESS)


_SESSION_ACTIONS: Final[Actions] = {
    "list": ("list sessions, which no action does too", _add_list),
    "rename": ("give a session another title", _rename),
    "archive": ("put a session away; it can be read and searched", _add_session),
    "unarchive": ("take a session back that was put away", _add_session),
    "fork": ("make a session that begins with what was sent in one", _fork),
    "move": ("give a session, or all of an agent, to another agent", _move),
    "rewind": ("take a conversation back to the end of a turn", _rewind),
    "compact": ("put a summary in the place of what was said so far", _compact),
    "clear": ("forget all that was said in a session, for good", _clear),
    "delete": ("delete a session for good, with all that belongs to it", _delete),
    "export": ("write a session out, a line of JSON for each entry", _export),
    "import": ("make new sessions of those in a file", _import),
}
