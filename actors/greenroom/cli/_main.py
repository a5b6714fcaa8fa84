"""From arguments to an exit status; the only place that ends the command.

A command is a function of the parsed arguments and the configuration in force. It
returns an exit status or raises a `GreenroomError`, whose sentence and hint are all
that the user sees. Anything else is a bug, and keeps its traceback.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from greenroom.protocol import GreenroomError

from ._acp import acp_command
from ._agents import agents_command
from ._attach import attach_command
from ._config import Config, default_config_file, load_config
from ._demo import demo_command
from ._doctor import doctor_command
from ._eval import eval_command
from ._exit import ExitCode, exit_code_for
from ._faults import is_only, known_errors, log_to_stderr
from ._gc import gc_command
from ._harmless import harmless, json_line
from ._import import import_command
from ._look import inspect_command, search_command
from ._parser import build_parser, flags_of
from ._run import run_command
from ._serve import serve_command
from ._sessions import sessions_command
from ._skills import memory_command, skills_command

Command = Callable[[argparse.Namespace, Config], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line *argv* (default: the process's) and return its status."""
    _survive_odd_encodings()
    log_to_stderr()
    try:
        arguments = build_parser(COMMANDS).parse_args(argv)
    except SystemExit as stop:  # argparse has printed the help, or what is wrong
        return stop.code if isinstance(stop.code, int) else ExitCode.USAGE
    try:
        return _run(arguments)
    except (KeyboardInterrupt, BrokenPipeError, BaseExceptionGroup) as error:
        if is_only(error, KeyboardInterrupt):
            return ExitCode.INTERRUPTED
        if is_only(error, BrokenPipeError):
            _give_up_on_output()
            return ExitCode.RUN_FAILED
        raise


def _run(arguments: argparse.Namespace) -> int:
    try:
        config = load_config(
            flags=flags_of(arguments), environ=os.environ, file=default_config_file()
        )
        log_to_stderr(config.log)
        status = COMMANDS[arguments.command](arguments, config)
        sys.stdout.flush()
    except (GreenroomError, BaseExceptionGroup) as error:
        known = known_errors(error)
        if not known:
            raise
        for each in known:
            _complain(each)
        return exit_code_for(known[0])
    return status


def show_config(arguments: argparse.Namespace, config: Config) -> int:
    """Print every setting and where it came from."""
    file = default_config_file()
    found = "found" if file.exists() else "not there"
    described = config.describe(os.environ)
    described["config_file"] = {"value": str(file), "origin": found}
    if arguments.json:
        sys.stdout.write(json_line(described))
        return ExitCode.OK
    width = max(len(key) for key in described)
    for key, entry in described.items():
        value = "-" if entry["value"] is None else harmless(str(entry["value"]))
        print(f"{key:<{width}}  {value}  ({harmless(entry['origin'])})")
    return ExitCode.OK


def _complain(error: GreenroomError) -> None:
    print(f"greenroom: {harmless(str(error))}", file=sys.stderr)
    if error.hint:
        print(f"  {harmless(error.hint)}", file=sys.stderr)


# A terminal that can't show a character gets a question mark, not a traceback.
def _survive_odd_encodings() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


# Nobody reads the output any more; without this the interpreter complains at exit.
def _give_up_on_output() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


COMMANDS: Final[Mapping[str, Command]] = {
    "demo": demo_command,
    "run": run_command,
    "acp": acp_command,
    "serve": serve_command,
    "attach": attach_command,
    "sessions": sessions_command,
    "search": search_command,
    "agents": agents_command,
    "skills": skills_command,
    "memory": memory_command,
    "import": import_command,
    "inspect": inspect_command,
    "doctor": doctor_command,
    "eval": eval_command,
    "gc": gc_command,
    "config": show_config,
}
"""What can be run; the parser offers exactly these."""
