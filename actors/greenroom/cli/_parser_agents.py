"""The grammar of ``greenroom agents``, ``skills`` and ``memory``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ._options import (
    Actions,
    SubParser,
    add_actions,
    add_agent,
    add_nothing,
    count,
    folder,
)


def agents(parser: SubParser) -> None:
    add_actions(parser, _AGENT_ACTIONS, "print each agent as one line of JSON")


def _agents_add(parser: SubParser) -> None:
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


def _agents_set(parser: SubParser) -> None:
    add_agent(parser)
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


def _agents_import(parser: SubParser) -> None:
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="a database of the older system"
    )


_AGENT_ACTIONS: Final[Actions] = {
    "list": ("list the agents", add_nothing),
    "show": ("show an agent, and what is in force for it", add_agent),
    "add": ("make an agent", _agents_add),
    "set": ("change an agent", _agents_set),
    "reset": ("give an agent the defaults again", add_agent),
    "remove": ("remove an agent that has no sessions", add_agent),
    "import": ("take over the agents of an older system's database", _agents_import),
}


def skills(parser: SubParser) -> None:
    add_actions(parser, _SKILL_ACTIONS, "print each Skill as one line of JSON")


def memory(parser: SubParser) -> None:
    add_actions(parser, _MEMORY_ACTIONS, "print each memory as one line of JSON")
    parser.set_defaults(agent="default", limit=50)


def _skills_add(parser: SubParser) -> None:
    parser.add_argument(
        "folder", type=folder, metavar="FOLDER", help="a folder with a SKILL.md"
    )


def _skills_remove(parser: SubParser) -> None:
    _add_skill(parser)
    parser.add_argument(
        "--agent",
        metavar="ID",
        action="append",
        default=None,
        help="an agent that loses it; each that has it must be named",
    )


def _skills_bind(parser: SubParser) -> None:
    add_agent(parser)
    _add_skill(parser)


def _skills_select(parser: SubParser) -> None:
    parser.add_argument("session", metavar="SESSION", help="the session's id")
    parser.add_argument(
        "names",
        nargs="*",
        default=[],
        metavar="NAME",
        help="what it uses from now on; none: nothing",
    )


def _add_skill(parser: SubParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the name of the Skill")


def _memory_list(parser: SubParser) -> None:
    parser.add_argument("agent", metavar="AGENT", nargs="?", help="whose memories")
    parser.add_argument(
        "--limit",
        type=count(500),
        metavar="N",
        help="how many, the newest first (default: 50)",
    )


def _memory_forget(parser: SubParser) -> None:
    parser.add_argument("agent", metavar="AGENT", help="who forgets")
    parser.add_argument(
        "number",
        type=count(999_999_999),
        nargs="?",
        default=None,
        metavar="N",
        help="one memory, as list numbers it (default: all of them)",
    )


_SKILL_ACTIONS: Final[Actions] = {
    "list": ("list the Skills, and which agents have them", add_nothing),
    "add": ("copy a Skill in; nobody may use it yet", _skills_add),
    "remove": ("remove a Skill that the named agents have", _skills_remove),
    "bind": ("give a Skill to an agent", _skills_bind),
    "unbind": ("take a Skill from an agent", _skills_bind),
    "select": ("say which Skills of its agent a session uses", _skills_select),
}


_MEMORY_ACTIONS: Final[Actions] = {
    "list": ("list what an agent remembers", _memory_list),
    "forget": ("let an agent forget", _memory_forget),
}
