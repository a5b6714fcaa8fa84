"""``greenroom sessions fork``, ``delete`` and ``move``: what an engine has to do.

Each opens an engine for a moment, so that it keeps every rule that an engine keeps, and
is done when it is on disk. A session that another engine has loaded is that engine's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import trio

from greenroom.engine import Engine, open_engine
from greenroom.protocol import SessionId
from greenroom.storage import open_reader

from ._config import Config
from ._exit import CliError, ExitCode
from ._harmless import json_line, one_line
from ._look import named_session

_Change = Callable[[Engine], Awaitable[dict[str, Any]]]


def fork_command(arguments: argparse.Namespace, config: Config) -> int:
    """Make a session of what was sent in one."""
    if arguments.rounds is not None and arguments.through is None:
        raise CliError("--rounds N needs --through MESSAGE")
    session_id = _named(config, arguments.session)

    async def fork(engine: Engine) -> dict[str, Any]:
        made = await engine.fork_session(
            session_id, through=arguments.through, rounds=arguments.rounds
        )
        return {"id": made.id}

    return _change(fork, arguments, config)


def delete_command(arguments: argparse.Namespace, config: Config) -> int:
    """Delete a session for good."""
    session_id = _named(config, arguments.session)

    async def delete(engine: Engine) -> dict[str, Any]:
        await engine.delete_session(session_id)
        return {"id": session_id}

    return _change(delete, arguments, config)


def move_command(arguments: argparse.Namespace, config: Config) -> int:
    """Give a session, or all sessions of an agent, to another agent."""
    target, source = arguments.agent, arguments.all_of
    if (source is None) == (arguments.session is None):
        raise CliError("name a session, or --all-of AGENT, and the agent to move to")
    if source is None:
        if arguments.dry_run:
            raise CliError("--dry-run is for --all-of AGENT")
        session_id = _named(config, arguments.session)

        async def move(engine: Engine) -> dict[str, Any]:
            settings = await engine.move_session(session_id, target)
            return {"id": session_id, "agent": settings.agent_id}

        return _change(move, arguments, config)

    async def move_all(engine: Engine) -> dict[str, Any]:
        if arguments.dry_run:
            return await _impact(engine, source)
        moved = await engine.move_sessions(source, target)
        return {"moved": moved.moved, "deleted": moved.deleted}

    return _change(move_all, arguments, config)


async def _impact(engine: Engine, source: str) -> dict[str, Any]:
    impact = await engine.assess_move(source)
    return {
        "moved": impact.moved,
        "deleted": impact.deleted,
        "blocked": impact.blocked,
        "samples": [
            {"id": session_id, "title": title, "blocked": blocked}
            for session_id, title, blocked in impact.samples
        ],
    }


def _named(config: Config, text: str) -> SessionId:
    with closing(open_reader(config.state)) as reader:
        return named_session(reader, text)


def _change(change: _Change, arguments: argparse.Namespace, config: Config) -> int:
    # A change makes no state where there is none.
    open_reader(config.state).close()
    done = trio.run(_run, change, config)
    if arguments.json:
        sys.stdout.write(json_line(done))
        return ExitCode.OK
    for key, value in done.items():
        if key != "samples":
            print(f"{key}  {one_line(str(value))}")
            continue
        for sample in value:
            why = f"  ({sample['blocked']})" if sample["blocked"] else ""
            print(f"  {sample['id']}  {one_line(sample['title'], 50)}{why}")
    return ExitCode.OK


async def _run(change: _Change, config: Config) -> dict[str, Any]:
    async with open_engine(
        state=config.state, builtin=False, program="greenroom sessions"
    ) as engine:
        return await change(engine)
