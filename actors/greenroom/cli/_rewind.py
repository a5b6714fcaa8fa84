"""``greenroom sessions rewind`` and ``clear``: taking back what was said, and done.

A dry run tells which messages would go and shows, as diffs, what would become of the
files. A session that another engine has loaded is that engine's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import trio

from greenroom.engine import SessionHandle, open_engine
from greenroom.protocol import SessionId
from greenroom.storage import open_reader

from ._config import Config
from ._diff import diff_lines
from ._exit import CliError, ExitCode
from ._harmless import harmless, json_line, one_line
from ._look import named_session

_Change = Callable[[SessionHandle], Awaitable[dict[str, Any]]]


def rewind_command(arguments: argparse.Namespace, config: Config) -> int:
    """Take a conversation back to the end of one of its turns."""
    if (arguments.message is None) != arguments.to_start:
        raise CliError(
            "name the message that is the last one then, or --to-start",
            hint="greenroom inspect SESSION shows the messages with their ids",
        )

    async def rewind(session: SessionHandle) -> dict[str, Any]:
        done = await session.rewind(
            arguments.message, files=arguments.files, dry_run=arguments.dry_run
        )
        return {
            "through": done.through,
            "messages": list(done.messages),
            "files": [
                {
                    "path": file.path,
                    "action": file.action,
                    "reason": file.reason,
                    "diff": file.diff,
                }
                for file in done.files
            ],
            "commands": done.commands,
            "done": done.done,
        }

    done = trio.run(_run, rewind, _named(config, arguments.session), config)
    if arguments.json:
        sys.stdout.write(json_line(done))
    else:
        print("\n".join(_lines(done)))
    return ExitCode.OK


def clear_command(arguments: argparse.Namespace, config: Config) -> int:
    """Forget all that was said in a session."""
    session_id = _named(config, arguments.session)

    async def clear(session: SessionHandle) -> dict[str, Any]:
        await session.clear()
        return {"id": session.id}

    done = trio.run(_run, clear, session_id, config)
    sys.stdout.write(json_line(done) if arguments.json else f"{session_id} is empty\n")
    return ExitCode.OK


def _lines(done: dict[str, Any]) -> list[str]:
    verb = "were" if done["done"] else "would be"
    lines = [f"{len(done['messages'])} messages {verb} taken back"]
    for file in done["files"]:
        why = f" ({one_line(file['reason'])})" if file["reason"] else ""
        lines.append(f"{file['action']}  {one_line(file['path'])}{why}")
        if file["diff"] is not None:
            shown = diff_lines(file["diff"])[1:]
            lines += [f"    {harmless(line)}" for _, line in shown]
    if done["files"] and done["commands"]:
        lines.append(f"what {done['commands']} other calls did stays as it is")
    return lines


def _named(config: Config, text: str) -> SessionId:
    # A change makes no state where there is none.
    with closing(open_reader(config.state)) as reader:
        return named_session(reader, text)


async def _run(
    change: _Change, session_id: SessionId, config: Config
) -> dict[str, Any]:
    async with open_engine(
        state=config.state, builtin=False, program="greenroom sessions"
    ) as engine:
        return await change(engine.session(session_id))
