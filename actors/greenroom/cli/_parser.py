"""The command line's grammar. No effect and no default of a setting is in here.

A flag that was not given is ``None``: defaults belong to `load_config`, which has
to know what the user said and what nobody did.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from ._exit import EXIT_CODE_HELP

_DESCRIPTION: Final = """\
An actor runtime for AI agents: every session is durable, can be cancelled at any
moment and can be inspected afterwards.
"""

MAX_LISTED: Final = 1_000
_WIDTH: Final = 78

_SubParser = argparse.ArgumentParser


def build_parser(commands: Collection[str]) -> argparse.ArgumentParser:
    """Return the parser for *commands*, each of which must be a known one."""
    parser = argparse.ArgumentParser(
        prog="greenroom",
        description=_DESCRIPTION,
        epilog=EXIT_CODE_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"greenroom {version('greenroom')}"
    )
    choices = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, title="commands"
    )
    for name, (summary, details, add_arguments) in _COMMANDS.items():
        if name in commands:
            sub = choices.add_parser(
                name,
                help=summary,
                description=_sentences(summary, details),
                epilog=EXIT_CODE_HELP,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
            add_arguments(sub)
    return parser


# The epilog keeps its lines, so argparse wraps neither.
def _sentences(summary: str, details: str) -> str:
    return textwrap.fill(f"{summary[0].upper()}{summary[1:]}. {details}", _WIDTH)


def flags_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the flags that are settings, for `load_config`."""
    return {name: value for name, value in vars(arguments).items() if value is not None}


#### Commands


def _demo(parser: _SubParser) -> None:
    _add_color(parser)


def _run(parser: _SubParser) -> None:
    parser.add_argument(
        "prompt", metavar="PROMPT", help="what to do; - reads it from standard input"
    )
    parser.add_argument(
        "--session",
        metavar="ID",
        help="go on in this session; how its id begins is enough",
    )
    parser.add_argument(
        "--agent", metavar="ID", help="the agent of a new session (greenroom agents)"
    )
    parser.add_argument(
        "--cwd",
        type=_folder,
        metavar="FOLDER",
        help="the folder that file tools may touch (default: the current one)",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="grant every permission without asking; use it on what you can lose",
    )
    _add_model(parser)
    _add_budget(parser)
    _add_json(parser, "print each event as one line of JSON")
    _add_color(parser)
    _add_state(parser)


def _acp(parser: _SubParser) -> None:
    _add_model(parser)
    _add_state(parser)


def _sessions(parser: _SubParser) -> None:
    _add_list(parser, limit=20)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    for name, (summary, add_arguments) in _SESSION_ACTIONS.items():
        sub = actions.add_parser(
            name,
            help=summary,
            description=_sentences(summary, ""),
            epilog=EXIT_CODE_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            # What stands before the action is not undone by a default behind it.
            argument_default=argparse.SUPPRESS,
        )
        add_arguments(sub)
        _add_state(sub, default=argparse.SUPPRESS)


def _add_list(parser: _SubParser, *, limit: int | None = None) -> None:
    absent = argparse.SUPPRESS if limit is None else None
    parser.add_argument(
        "--limit",
        type=_count(MAX_LISTED),
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
    _add_json(parser, "print each session as one line of JSON", default=absent or False)
    if limit is not None:
        _add_state(parser)


def _rename(parser: _SubParser) -> None:
    _add_session(parser)
    parser.add_argument("title", metavar="TITLE", help="the new title")


def _add_session(parser: _SubParser) -> None:
    parser.add_argument(
        "session", metavar="SESSION", help="the session's id, or how it begins"
    )


def _export(parser: _SubParser) -> None:
    _add_session(parser)
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default="-",
        help="a file that is not there yet (default: standard output)",
    )


def _import(parser: _SubParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help="what export wrote; - is standard input"
    )
    parser.add_argument(
        "--cwd",
        type=_folder,
        metavar="FOLDER",
        default=None,
        help="the folder that their file tools may touch (default: the current one)",
    )


def _fork(parser: _SubParser) -> None:
    _add_session(parser)
    parser.add_argument(
        "--through",
        metavar="MESSAGE",
        default=None,
        help="the id of the last message that is copied (default: all)",
    )
    _add_done(parser)


def _move(parser: _SubParser) -> None:
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


def _delete(parser: _SubParser) -> None:
    _add_session(parser)
    _add_done(parser)


def _rewind(parser: _SubParser) -> None:
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


def _compact(parser: _SubParser) -> None:
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
    _add_who(parser)
    _add_done(parser)


def _clear(parser: _SubParser) -> None:
    _add_session(parser)
    _add_done(parser)


def _add_done(parser: _SubParser) -> None:
    told = "print what was done as one line of JSON"
    _add_json(parser, told, default=argparse.SUPPRESS)


_SESSION_ACTIONS: Final[Mapping[str, tuple[str, Callable[[_SubParser], None]]]] = {
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


def _search(parser: _SubParser) -> None:
    parser.add_argument(
        "query", metavar="QUERY", help="words, all of which a message must hold"
    )
    parser.add_argument(
        "--session", metavar="ID", help="in this session; how its id begins is enough"
    )
    parser.add_argument(
        "--limit",
        type=_count(50),
        default=12,
        metavar="N",
        help="how many, the best first, at most 50 (default: 12)",
    )
    _add_json(parser, "print each message that was found as one line of JSON")
    _add_state(parser)


def _inspect(parser: _SubParser) -> None:
    parser.add_argument(
        "target",
        metavar="SESSION|RUN|VIEW",
        help="the id of a session, or how it begins, or the id of a run or a view",
    )
    parser.add_argument(
        "--views",
        action="store_true",
        help="list what requests carried instead, a view each",
    )
    parser.add_argument(
        "--diff",
        metavar="VIEW",
        default=None,
        help="of a view: print only in what that other one differs",
    )
    parser.add_argument(
        "--traces",
        action="store_true",
        help="print what was sent to the provider instead, without keys",
    )
    _add_json(parser, "print each line of the story as one line of JSON")
    _add_state(parser)


def _doctor(parser: _SubParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--repair",
        action="store_true",
        help="derive anew what differs from the tape, after a backup",
    )
    what.add_argument(
        "--salvage",
        metavar="FILE",
        help="write every entry that can be read to a new file, a line of JSON each",
    )
    _add_json(parser, "print one JSON object")
    _add_state(parser)


def _eval(parser: _SubParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="scenarios of your own, in TOML or JSON",
    )
    parser.add_argument(
        "--only",
        metavar="ID",
        action="append",
        help="run this scenario alone; may be given again for more",
    )
    _add_json(parser, "print the report as one JSON object")
    _add_color(parser)


def _agents(parser: _SubParser) -> None:
    _add_json(parser, "print each agent as one line of JSON")
    _add_state(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    for name, (summary, add_arguments) in _AGENT_ACTIONS.items():
        sub = actions.add_parser(
            name,
            help=summary,
            description=_sentences(summary, ""),
            epilog=EXIT_CODE_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            # What stands before the action is not undone by a default behind it.
            argument_default=argparse.SUPPRESS,
        )
        add_arguments(sub)
        _add_json(sub, "print JSON, one object a line", default=argparse.SUPPRESS)
        _add_state(sub, default=argparse.SUPPRESS)


def _add_nothing(parser: _SubParser) -> None:
    """The action has no arguments of its own."""


def _add_agent(parser: _SubParser) -> None:
    parser.add_argument("agent", metavar="ID", help="the id of the agent")


def _agents_add(parser: _SubParser) -> None:
    parser.add_argument("name", metavar="NAME", help="what the agent is called")
    parser.add_argument("--description", metavar="TEXT", default="")
    parser.add_argument(
        "--config", metavar="JSON", default=None, help="its configuration, an object"
    )
    parser.add_argument(
        "--acp",
        metavar="COMMAND",
        default=None,
        help="an agent in a process of its own, which this command starts",
    )
    parser.add_argument(
        "--arg",
        metavar="ARG",
        action="append",
        default=None,
        help="for the command; --arg=-v for one that begins with a dash",
    )
    parser.add_argument(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        default=None,
        help="for the command",
    )


def _agents_set(parser: _SubParser) -> None:
    _add_agent(parser)
    parser.add_argument(
        "patch",
        nargs="?",
        metavar="PATCH",
        default=None,
        help="what changes in its configuration, as JSON; null takes a member away,"
        " - reads it from standard input",
    )
    parser.add_argument("--name", metavar="NAME", default=None)
    parser.add_argument("--description", metavar="TEXT", default=None)
    switch = parser.add_mutually_exclusive_group()
    switch.add_argument(
        "--enable", action="store_const", const=True, dest="enabled", default=None
    )
    switch.add_argument(
        "--disable", action="store_const", const=False, dest="enabled", default=None
    )
    parser.add_argument(
        "--default",
        action="store_true",
        default=False,
        help="let it be the agent of sessions that name none",
    )


def _agents_import(parser: _SubParser) -> None:
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="a database of the older system"
    )


_AGENT_ACTIONS: Final[Mapping[str, tuple[str, Callable[[_SubParser], None]]]] = {
    "list": ("list the agents", _add_nothing),
    "show": ("show an agent, and what is in force for it", _add_agent),
    "add": ("make an agent", _agents_add),
    "set": ("change an agent", _agents_set),
    "reset": ("give an agent the defaults again", _add_agent),
    "remove": ("remove an agent that has no sessions", _add_agent),
    "import": ("take over the agents of an older system's database", _agents_import),
}


def _take_over(parser: _SubParser) -> None:
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="a database of the older system"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--dry-run", action="store_true", help="tell what is in it; change nothing"
    )
    what.add_argument(
        "--export",
        metavar="ID",
        help="write this conversation out of the file, as sessions export does",
    )
    parser.add_argument(
        "--cwd",
        type=_folder,
        metavar="FOLDER",
        help="the folder that their file tools may touch (default: the current one)",
    )
    _add_json(parser, "print each conversation as one line of JSON")
    _add_state(parser)


def _skills(parser: _SubParser) -> None:
    _add_actions(parser, _SKILL_ACTIONS, "print each Skill as one line of JSON")


def _memory(parser: _SubParser) -> None:
    _add_actions(parser, _MEMORY_ACTIONS, "print each memory as one line of JSON")
    parser.set_defaults(agent="default", limit=50)


def _add_actions(parser: _SubParser, actions: _Actions, json_help: str) -> None:
    _add_json(parser, json_help)
    _add_state(parser)
    choices = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    for name, (summary, add_arguments) in actions.items():
        sub = choices.add_parser(
            name,
            help=summary,
            description=_sentences(summary, ""),
            epilog=EXIT_CODE_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            # What stands before the action is not undone by a default behind it.
            argument_default=argparse.SUPPRESS,
        )
        add_arguments(sub)
        _add_json(sub, "print JSON, one object a line", default=argparse.SUPPRESS)
        _add_state(sub, default=argparse.SUPPRESS)


def _skills_add(parser: _SubParser) -> None:
    parser.add_argument(
        "folder", type=_folder, metavar="FOLDER", help="a folder with a SKILL.md"
    )


def _skills_remove(parser: _SubParser) -> None:
    _add_skill(parser)
    parser.add_argument(
        "--agent",
        metavar="ID",
        action="append",
        default=None,
        help="an agent that loses it; each that has it must be named",
    )


def _skills_bind(parser: _SubParser) -> None:
    _add_agent(parser)
    _add_skill(parser)


def _skills_select(parser: _SubParser) -> None:
    parser.add_argument("session", metavar="SESSION", help="the session's id")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="what it uses from now on"
    )


def _add_skill(parser: _SubParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name of the Skill")


def _memory_list(parser: _SubParser) -> None:
    parser.add_argument("agent", metavar="AGENT", nargs="?", help="whose memories")
    parser.add_argument(
        "--limit",
        type=_count(500),
        metavar="N",
        help="how many, the newest first (default: 50)",
    )


def _memory_forget(parser: _SubParser) -> None:
    parser.add_argument("agent", metavar="AGENT", help="who forgets")
    parser.add_argument(
        "number",
        type=_count(999_999_999),
        nargs="?",
        default=None,
        metavar="N",
        help="one memory, as list numbers it (default: all of them)",
    )


_Actions = Mapping[str, tuple[str, Callable[[_SubParser], None]]]

_SKILL_ACTIONS: Final[_Actions] = {
    "list": ("list the Skills, and which agents have them", _add_nothing),
    "add": ("copy a Skill in; nobody may use it yet", _skills_add),
    "remove": ("remove a Skill that the named agents have", _skills_remove),
    "bind": ("give a Skill to an agent", _skills_bind),
    "unbind": ("take a Skill from an agent", _skills_bind),
    "select": ("say which Skills of its agent a session uses", _skills_select),
}

_MEMORY_ACTIONS: Final[_Actions] = {
    "list": ("list what an agent remembers", _memory_list),
    "forget": ("let an agent forget", _memory_forget),
}


def _gc(parser: _SubParser) -> None:
    parser.add_argument(
        "--older-than",
        type=_age,
        default=_age("30d"),
        metavar="AGE",
        help="keep what is younger: 12h, 30d, 8w (default: 30d)",
    )
    parser.add_argument(
        "--archived",
        action="store_true",
        help="remove sessions that were archived so long ago, for good",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="tell what would go; remove nothing"
    )
    _add_json(parser, "print one JSON object")
    _add_state(parser)


def _config(parser: _SubParser) -> None:
    _add_model(parser)
    _add_json(parser, "print one JSON object")
    _add_color(parser)
    _add_state(parser)


_Command = tuple[str, str, Callable[[_SubParser], None]]

_COMMANDS: Final[Mapping[str, _Command]] = {
    "demo": (
        "show greenroom at work, without a key or a service",
        "A rehearsed model reads, asks and writes in a temporary folder.",
        _demo,
    ),
    "run": (
        "run one prompt to the end of its turn",
        "Text and tool calls are shown as they come.",
        _run,
    ),
    "acp": (
        "be an agent for an editor, on standard input and output",
        "It speaks the Agent Client Protocol until its input ends.",
        _acp,
    ),
    "sessions": (
        "list the sessions of the state folder, rename them, put them away",
        "",
        _sessions,
    ),
    "search": (
        "find messages by their words, in all sessions or in one",
        "Quotes and operators are taken as they are; case does not count.",
        _search,
    ),
    "agents": (
        "list the agents, make, change and remove them",
        "An agent is what a session is of: its prompt, its model, its limits.",
        _agents,
    ),
    "import": (
        "take over the conversations of an older system's database",
        "The file is only read. What was taken over before is left as it is.",
        _take_over,
    ),
    "skills": (
        "list the Skills, add and remove them, say who may use them",
        "A Skill is a folder with a SKILL.md; an agent has those that it was given.",
        _skills,
    ),
    "memory": (
        "list what an agent remembers, or have it forget",
        "An agent remembers only where its memoryEnabled says so.",
        _memory,
    ),
    "inspect": (
        "tell what happened in a session or a run",
        "The story is read from the tape; nothing is run and nothing is changed.",
        _inspect,
    ),
    "doctor": (
        "examine the state folder, and repair what can be repaired",
        "Without an option it only reads, beside whoever works in the folder.",
        _doctor,
    ),
    "eval": (
        "run scenarios of a scripted model, and judge how they end",
        (
            "It needs no key and no service, and keeps nothing. Without FILE it runs "
            "the fifteen that every greenroom must pass."
        ),
        _eval,
    ),
    "gc": (
        "remove old traces, and files of tools that belong to no session",
        "No engine may use the folder meanwhile, except with --dry-run.",
        _gc,
    ),
    "config": (
        "print every setting and where it came from",
        "Keys are never printed, only whether one is set.",
        _config,
    ),
}


#### Arguments


def _add_state(parser: _SubParser, *, default: str | None = None) -> None:
    parser.add_argument(
        "--state",
        metavar="FOLDER",
        default=default,
        help="the folder where sessions are kept",
    )


def _add_json(
    parser: _SubParser, description: str, *, default: str | bool = False
) -> None:
    parser.add_argument(
        "--json", action="store_true", default=default, help=description
    )


def _add_color(parser: _SubParser) -> None:
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        help="when to use colour (default: auto, which honours NO_COLOR)",
    )


def _add_who(parser: _SubParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="the model to ask")
    parser.add_argument(
        "--base-url", metavar="URL", help="the address of an OpenAI-compatible provider"
    )
    parser.add_argument(
        "--provider",
        metavar="DIALECT",
        help="the provider's dialect (default: found from the address)",
    )


def _add_model(parser: _SubParser) -> None:
    _add_who(parser)
    parser.add_argument(
        "--max-rounds",
        type=_count(1_000_000, least=0),
        metavar="N",
        help="stop after N rounds of the model; 0 means no limit",
    )


def _add_budget(parser: _SubParser) -> None:
    parser.add_argument(
        "--budget-tokens",
        type=_count(999_999_999, least=0),
        metavar="N",
        help="ask before the turn uses more than N tokens; 0 means no limit",
    )
    parser.add_argument(
        "--budget-money",
        type=_amount,
        metavar="DOLLARS",
        help="ask before the turn costs more than this",
    )
    parser.add_argument(
        "--budget-seconds",
        type=_amount,
        metavar="SECONDS",
        help="ask before the turn works for longer than this",
    )


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e9:
        raise argparse.ArgumentTypeError("must be a number, 0 to a billion")
    return value


def _count(most: int, *, least: int = 1) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise argparse.ArgumentTypeError("must be a whole number")
        if not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be {least} to {most}")
        return int(text)

    return convert


_AGES: Final = {"h": 3_600, "d": 86_400, "w": 7 * 86_400}


def _age(text: str) -> float:
    """Return the seconds in an age such as 30d."""
    number, unit = text[:-1], text[-1:]
    if unit not in _AGES or not (number.isascii() and number.isdigit()):
        raise argparse.ArgumentTypeError("must be a number and h, d or w, as in 30d")
    if len(number) > 5:
        raise argparse.ArgumentTypeError("is too long ago")
    return float(int(number) * _AGES[unit])


def _folder(text: str) -> Path:
    try:
        path = Path(text).resolve()
        if path.is_dir():
            return path
    except (OSError, ValueError):
        pass
    raise argparse.ArgumentTypeError("is not a folder")
