"""The ``shell`` tool: run a command in the workspace."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from greenroom.protocol import safe_text

from .._excerpt import MAX_RESULT_CHARS, cut_middle, one_line
from .._port import Needs, Operation, ToolContext, ToolRefused, ToolResult
from .._typed import TypedTool, define
from ._confined import in_thread, problem
from ._script import Ended, Script, run_script

MAX_SECONDS: Final = 600
DEFAULT_SECONDS: Final = 120

# What a command needs to find its tools and its language. Nothing else of the
# engine's environment reaches it: that is where the keys of providers are.
_PASSED: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ"),
        *("LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES"),
        *("LC_MONETARY", "LC_NUMERIC", "LC_TIME"),
    }
)
# No terminal is there: no colours, no pagers, no questions for a password.
_SET: Final = {"TERM": "dumb", "PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


class ShellArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to run."""

    command: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=100_000,
            description="A shell script; it starts in the workspace, without input",
        ),
    ]
    timeout: Annotated[
        int,
        msgspec.Meta(ge=1, le=MAX_SECONDS, description="Seconds it may take"),
    ] = DEFAULT_SECONDS


async def _check(arguments: ShellArguments, context: ToolContext) -> Needs:
    command = arguments.command
    if "\x00" in command or safe_text(command) != command:
        raise ToolRefused("the command holds a NUL character or a lone surrogate")
    if not command.strip():
        raise ToolRefused("the command is blank")
    if not await in_thread(os.path.isdir, context.workspace):
        raise ToolRefused("the workspace is not there any more")
    line = one_line(command)
    return Needs(
        permission=f"run a command: {line}",
        title=line,
        kind="execute",
        detail=command,
    )


async def _perform(arguments: ShellArguments, operation: Operation) -> ToolResult:
    context = operation.context
    await _check(arguments, context)
    environment = child_environment(context.environment)
    script = Script(
        text=arguments.command,
        shell=_shell(environment["PATH"]),
        folder=context.workspace,
        environment=environment,
        marker=operation.id.hash,
        seconds=arguments.timeout,
    )
    await operation.dispatch()
    try:
        ended = await run_script(script, operation.progress)
    except OSError as exc:
        return ToolResult(f"can't start a command: {problem(exc)}", is_error=True)
    # Shown whole: it goes into a file only where the context is too small for it.
    text, failed = describe(ended, arguments.timeout)
    return ToolResult(cut_middle(text, MAX_RESULT_CHARS), is_error=failed)


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of *environment* that a command gets."""
    passed = {key: environment[key] for key in environment.keys() & _PASSED}
    return {"PATH": os.defpath, **passed, **_SET}


def _shell(path: str) -> str:
    found = shutil.which("bash", path=path)
    return found if found and os.path.isabs(found) else "/bin/sh"


def describe(ended: Ended, seconds: int) -> tuple[str, bool]:
    """Return what the model reads of how a command ended, and whether it failed."""
    note = _note(ended, seconds)
    parts = [part for part in (ended.output.rstrip("\n"), note) if part]
    return "\n".join(parts) or "(no output)", bool(note)


def _note(ended: Ended, seconds: int) -> str:
    if ended.timed_out:
        return f"[timed out after {seconds} s; all that it started was ended]"
    if ended.code is None:
        return "[the command killed its own runner; its exit code is not known]"
    if ended.code < 0:
        return f"[ended by signal {-ended.code}{_signal_name(-ended.code)}]"
    return f"[exit code {ended.code}]" if ended.code else ""


def _signal_name(number: int) -> str:
    try:
        return f", {signal.Signals(number).name}"
    except ValueError:
        return ""


SHELL: Final = TypedTool(
    definition=define(
        "shell",
        "Run a shell script in the workspace and return its output, errors included. "
        "It has no input and no terminal. When it ends, what it left in the "
        "background is ended too.",
        ShellArguments,
    ),
    arguments=ShellArguments,
    check=_check,
    perform=_perform,
)
