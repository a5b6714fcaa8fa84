"""Arguments that several commands take, and the types of their values."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ._exit import EXIT_CODE_HELP

MAX_LISTED: Final = 1_000
_WIDTH: Final = 78

SubParser = argparse.ArgumentParser
Actions = Mapping[str, tuple[str, Callable[[SubParser], None]]]


# The epilog keeps its lines, so argparse wraps neither.
def sentences(summary: str, details: str) -> str:
    return textwrap.fill(f"{summary[0].upper()}{summary[1:]}. {details}", _WIDTH)


def add_actions(parser: SubParser, actions: Actions, json_help: str) -> None:
    add_json(parser, json_help)
    add_state(parser)
    for sub in add_choices(parser, actions):
        add_json(sub, "print JSON, one object a line", default=argparse.SUPPRESS)


def add_choices(parser: SubParser, actions: Actions) -> list[SubParser]:
    """Add *actions*, each with its arguments and the state's, and return them."""
    choices = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    made: list[SubParser] = []
    for name, (summary, add_arguments) in actions.items():
        sub = choices.add_parser(
            name,
            help=summary,
            description=sentences(summary, ""),
            epilog=EXIT_CODE_HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            # What stands before the action is not undone by a default behind it.
            argument_default=argparse.SUPPRESS,
        )
        add_arguments(sub)
        add_state(sub, default=argparse.SUPPRESS)
        made.append(sub)
    return made


def add_nothing(parser: SubParser) -> None:
    """The action has no arguments of its own."""


def add_agent(parser: SubParser) -> None:
    parser.add_argument("agent", metavar="ID", help="the id of the agent")


def add_state(parser: SubParser, *, default: str | None = None) -> None:
    parser.add_argument(
        "--state",
        metavar="FOLDER",
        default=default,
        help="the folder where sessions are kept",
    )


def add_json(
    parser: SubParser, description: str, *, default: str | bool = False
) -> None:
    parser.add_argument(
        "--json", action="store_true", default=default, help=description
    )


def add_yes(parser: SubParser) -> None:
    parser.add_argument(
        "--yes",
        action="store_true",
        help="grant every permission without asking; use it on what you can lose",
    )


def add_token(parser: SubParser) -> None:
    """How a client of a gateway shows who it is."""
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the token for the gateway, if it needs one; GREENROOM_TOKEN may hold it",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="send the token unencrypted, to another machine too",
    )


def add_color(parser: SubParser) -> None:
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        help="when to use colour (default: auto, which honours NO_COLOR)",
    )


def add_log(parser: SubParser) -> None:
    parser.add_argument(
        "--log",
        choices=("text", "json"),
        metavar="FORM",
        help="how to write warnings to standard error: text, or json, a line each",
    )


def add_who(parser: SubParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="the model to ask")
    parser.add_argument(
        "--base-url", metavar="URL", help="the address of an OpenAI-compatible provider"
    )
    parser.add_argument(
        "--provider",
        metavar="DIALECT",
        help="the provider's dialect (default: found from the address)",
    )


def add_model(parser: SubParser) -> None:
    add_who(parser)
    parser.add_argument(
        "--max-rounds",
        type=count(1_000_000, least=0),
        metavar="N",
        help="stop after N rounds of the model; 0 means no limit",
    )


def add_budget(parser: SubParser) -> None:
    parser.add_argument(
        "--budget-tokens",
        type=count(999_999_999, least=0),
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


def count(most: int, *, least: int = 1) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise argparse.ArgumentTypeError("must be a whole number")
        if not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be {least} to {most}")
        return int(text)

    return convert


_AGES: Final = {"h": 3_600, "d": 86_400, "w": 7 * 86_400}


def age(text: str) -> float:
    """Return the seconds in an age such as 30d."""
    number, unit = text[:-1], text[-1:]
    if unit not in _AGES or not (number.isascii() and number.isdigit()):
        raise argparse.ArgumentTypeError("must be a number and h, d or w, as in 30d")
    if len(number) > 5:
        raise argparse.ArgumentTypeError("is too long ago")
    return float(int(number) * _AGES[unit])


def folder(text: str) -> Path:
    try:
        path = Path(text).resolve()
        if path.is_dir():
            return path
    except (OSError, ValueError):
        pass
    raise argparse.ArgumentTypeError("is not a folder")
