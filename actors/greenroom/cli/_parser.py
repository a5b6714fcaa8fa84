"""The command line's grammar. No effect and no default of a setting is in here.

A flag that was not given is ``None``: defaults belong to `load_config`, which has
to know what the user said and what nobody did.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from greenroom.client import DEFAULT_URL
from greenroom.gateway import DEFAULT_PORT

from ._exit import EXIT_CODE_HELP, ExitCode
from ._harmless import harmless
from ._options import (
    SubParser,
    add_budget,
    add_color,
    add_json,
    add_log,
    add_model,
    add_state,
    add_token,
    add_yes,
    age,
    count,
    folder,
    sentences,
)
from ._parser_agents import agents, memory, skills
from ._parser_sessions import sessions

_DESCRIPTION: Final = """\
An actor runtime for AI agents: every session is durable, can be cancelled at any
moment and can be inspected afterwards.
"""


def parse(argv: Sequence[str] | None, commands: Collection[str]) -> argparse.Namespace:
    """Return what *argv* (default: the process's) says, as one of *commands*.

    Raises:
        SystemExit: it asked for help, or is wrong and was told so.
    """
    parser = build_parser(commands)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        # `parse_args` would show how the commands are called, not how this one is.
        command = f"{parser.prog} {arguments.command}"
        what = harmless(" ".join(unknown))
        told = f"{command}: error: unrecognized arguments: {what}\n"
        parser.exit(ExitCode.USAGE, f"{told}  see {command} --help\n")
    return arguments


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
                description=sentences(summary, details),
                epilog=EXIT_CODE_HELP,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
            add_arguments(sub)
    return parser


def flags_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the flags that are settings, for `load_config`."""
    return {name: value for name, value in vars(arguments).items() if value is not None}


def _demo(parser: SubParser) -> None:
    add_color(parser)


def _run(parser: SubParser) -> None:
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        help="what to do; - reads it from standard input; with --session also"
        " /compact [FOCUS], which puts a summary in the place of what was said",
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
        type=Path,
        metavar="FOLDER",
        help="the folder that file tools may touch (default: the current one; with"
        " --remote it is one of the gateway's machine, by default the gateway's)",
    )
    add_yes(parser)
    parser.add_argument(
        "--remote",
        metavar="URL",
        help="run it in the engine of the gateway at URL (greenroom serve)",
    )
    add_token(parser)
    add_model(parser)
    add_budget(parser)
    add_json(parser, "print each event as one line of JSON")
    add_color(parser)
    add_log(parser)
    add_state(parser)


def _acp(parser: SubParser) -> None:
    add_model(parser)
    add_log(parser)
    add_state(parser)


def _serve(parser: SubParser) -> None:
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address to listen on (default: 127.0.0.1, this machine alone)",
    )
    parser.add_argument(
        "--port",
        type=count(65_535, least=0),
        default=DEFAULT_PORT,
        metavar="N",
        help=f"the port (default: {DEFAULT_PORT}); 0 takes a free one",
    )
    parser.add_argument(
        "--cwd",
        type=folder,
        metavar="FOLDER",
        help="the folder of sessions that name none (default: the current one)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the tokens of clients, a line each: TOKEN [read,write,admin]; "
        "GREENROOM_TOKEN may hold one, too",
    )
    parser.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="a certificate, to use TLS"
    )
    parser.add_argument(
        "--tls-key", type=Path, metavar="FILE", help="its key, if it is not in there"
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="listen on another address without TLS: something in front encrypts",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        metavar="ORIGIN",
        help="let pages of this origin connect; may be given again for more",
    )
    parser.add_argument(
        "--demo",
        action="store_true",
        help="show a scripted session, in folders that are removed at the end",
    )
    add_model(parser)
    add_json(parser, "print one line of JSON when it is ready")
    add_state(parser)


def _attach(parser: SubParser) -> None:
    parser.add_argument(
        "place",
        metavar="[URL] [SESSION]",
        nargs="*",
        help=f"the gateway (default: {DEFAULT_URL}), and a session of it: how its id "
        "begins is enough; without one it is the newest, or you choose",
    )
    add_yes(parser)
    add_token(parser)
    add_json(parser, "print each event as one line of JSON")
    add_color(parser)


def _search(parser: SubParser) -> None:
    parser.add_argument(
        "query", metavar="QUERY", help="words, all of which a message must hold"
    )
    parser.add_argument(
        "--session", metavar="ID", help="in this session; how its id begins is enough"
    )
    parser.add_argument(
        "--limit",
        type=count(50),
        default=12,
        metavar="N",
        help="how many, the best first, at most 50 (default: 12)",
    )
    add_json(parser, "print each message that was found as one line of JSON")
    add_state(parser)


def _inspect(parser: SubParser) -> None:
    parser.add_argument(
        "target",
        metavar="SESSION|RUN|MESSAGE|VIEW",
        help=(
            "the id of a session, or how it begins, or the id of a run, of a message"
            " or of a view; a message is followed through all its hops"
        ),
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
    add_json(parser, "print each line of the story as one line of JSON")
    add_state(parser)


def _doctor(parser: SubParser) -> None:
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
    add_json(parser, "print one JSON object")
    add_state(parser)


def _eval(parser: SubParser) -> None:
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
    add_json(parser, "print the report as one JSON object")
    add_color(parser)


def _take_over(parser: SubParser) -> None:
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
        type=folder,
        metavar="FOLDER",
        help="the folder that their file tools may touch (default: the current one)",
    )
    add_json(parser, "print each conversation as one line of JSON")
    add_state(parser)


def _gc(parser: SubParser) -> None:
    parser.add_argument(
        "--older-than",
        type=age,
        default=age("30d"),
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
    add_json(parser, "print one JSON object")
    add_state(parser)


def _config(parser: SubParser) -> None:
    add_model(parser)
    add_log(parser)
    add_json(parser, "print one JSON object")
    add_color(parser)
    add_state(parser)


_Command = tuple[str, str, Callable[[SubParser], None]]


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
    "serve": (
        "let clients use this engine over WebSocket, and a browser look at it",
        "It goes on until it is told to stop; turns outlive the clients they are of.",
        _serve,
    ),
    "attach": (
        "look at a session of a gateway, and talk with it",
        "Lines are said to it; /help tells what else. What runs goes on without you.",
        _attach,
    ),
    "sessions": (
        "list the sessions of the state folder, rename them, put them away",
        "",
        sessions,
    ),
    "search": (
        "find messages by their words, in all sessions or in one",
        "Quotes and operators are taken as they are; case does not count.",
        _search,
    ),
    "agents": (
        "list the agents, make, change and remove them",
        "An agent is what a session is of: its prompt, its model, its limits.",
        agents,
    ),
    "import": (
        "take over the conversations of an older system's database",
        "The file is only read. What was taken over before is left as it is.",
        _take_over,
    ),
    "skills": (
        "list the Skills, add and remove them, say who may use them",
        "A Skill is a folder with a SKILL.md; an agent has those that it was given.",
        skills,
    ),
    "memory": (
        "list what an agent remembers, or have it forget",
        "An agent remembers only where its memoryEnabled says so.",
        memory,
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
