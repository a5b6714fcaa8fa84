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
from ._exit import CliError, ExitCode, exit_code_for
from ._faults import is_only, is_without_room, known_errors, log_to_stderr
from ._gc import gc_command
from ._harmless import harmless, json_line
from ._import import import_command
from ._look import inspect_command, search_command
from ._parser import flags_of, parse
from ._run import run_command
from ._serve import serve_command
from ._sessions import sessions_command
from ._skills import memory_command, skills_command

Command = Callable[[argparse.Namespace, Config], int]

_MAKE_ROOM: Final = "make room where it goes; greenroom inspect tells what a turn did"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line *argv* (default: the process's) and return its status."""
    _survive_odd_encodings()
    log_to_stderr()
    try:
        arguments = parse(argv, COMMANDS)
    except SystemExit as stop:  # argparse has printed the help, or what is wrong
        return stop.code if isinstance(stop.code, int) else ExitCode.USAGE
    if arguments.command != "acp":  # it can't do without, and says so
        _open_closed_streams()
    try:
        return _run(arguments)
    except (KeyboardInterrupt, OSError, BaseExceptionGroup) as error:
        if is_only(error, KeyboardInterrupt):
            return ExitCode.INTERRUPTED
        if not (is_only(error, BrokenPipeError) or is_without_room(error)):
            raise
        _give_up_on_output()
        if is_without_room(error):
            _complain(CliError("there is no room for the output", hint=_MAKE_ROOM))
        return ExitCode.RUN_FAILED


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


# Started with `>&-`, as some services are. Left closed, its number would go to the next
# file that is opened, and Python would have nothing there to write to.
def _open_closed_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115 - until the process ends
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


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
