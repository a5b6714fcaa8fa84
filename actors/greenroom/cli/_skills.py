"""``greenroom skills`` and ``greenroom memory``: who may use what, and what is kept.

Looking reads beside whoever works in the folder. A change opens an engine for a moment,
so that it keeps every rule that an engine keeps, and is done when it is on disk.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import trio

from greenroom.actors.skills import Packages
from greenroom.engine import Engine, open_engine
from greenroom.protocol import (
    AgentNotFoundError,
    SessionId,
    SkillState,
    holders,
)
from greenroom.storage import NoStoreError, open_reader, read_skill_state

from ._config import Config
from ._exit import ExitCode
from ._harmless import json_line, one_line


def skills_command(arguments: argparse.Namespace, config: Config) -> int:
    """List Skills, or do what the action says."""
    action = arguments.action or "list"
    if action == "list":
        return _list_skills(arguments, config)
    return _do(_SKILL_CHANGES[action], arguments, config)


def memory_command(arguments: argparse.Namespace, config: Config) -> int:
    """List what an agent remembers, or have it forget."""
    action = arguments.action or "list"
    if action == "list":
        return _list_memories(arguments, config)
    return _do(_forget, arguments, config)


#### Looking


def _list_skills(arguments: argparse.Namespace, config: Config) -> int:
    try:
        with closing(open_reader(config.state)) as reader:
            state = read_skill_state(reader)
    except NoStoreError:
        state = SkillState()
    found = Packages(config.state / "skills").look()
    for name in sorted(state.skills.keys() | found.keys()):
        package = found.get(name)
        shown = {
            "name": name,
            "description": package.text.description if package else None,
            "agents": holders(state, name),
            "source": state.skills[name].source if name in state.skills else None,
            "usable": package is not None and name in state.skills,
        }
        line = json_line(shown) if arguments.json else f"{_line(shown)}\n"
        sys.stdout.write(line)
    if not (state.skills or found or arguments.json):
        print(f"no Skills yet in {one_line(str(config.state))}")
    return ExitCode.OK


def _line(shown: Mapping[str, Any]) -> str:
    agents = ", ".join(map(one_line, shown["agents"])) or "nobody"
    about = one_line(shown["description"] or "its SKILL.md can't be used")
    return f"{one_line(shown['name']):<24}  {about}  (used by {agents})"


def _list_memories(arguments: argparse.Namespace, config: Config) -> int:
    with closing(open_reader(config.state)) as reader:
        if reader.agent(arguments.agent) is None:
            raise AgentNotFoundError(arguments.agent)
        found = reader.recollections(arguments.agent, arguments.limit)
    for each in found:
        if arguments.json:
            sys.stdout.write(json_line(each))
        else:
            session = one_line(each.session_id, 8)
            print(f"{each.id:>6}  {session}  {one_line(each.text, 200)}")
    if not found and not arguments.json:
        print(f"agent {one_line(arguments.agent)} remembers nothing")
    return ExitCode.OK


#### Changes

_Change = Callable[[Engine, argparse.Namespace], Awaitable[dict[str, Any]]]


def _do(change: _Change, arguments: argparse.Namespace, config: Config) -> int:
    done = trio.run(_open_and_do, change, arguments, config)
    if arguments.json:
        sys.stdout.write(json_line(done))
    else:
        print(one_line(" ".join(str(value) for value in done.values())))
    return ExitCode.OK


async def _open_and_do(
    change: _Change, arguments: argparse.Namespace, config: Config
) -> dict[str, Any]:
    async with open_engine(
        state=config.state, builtin=False, program="greenroom skills"
    ) as engine:
        return await change(engine, arguments)


async def _add(engine: Engine, arguments: argparse.Namespace) -> dict[str, Any]:
    folder = await trio.Path(arguments.folder).resolve()
    return {"name": await engine.skills.add(Path(folder))}


async def _remove(engine: Engine, arguments: argparse.Namespace) -> dict[str, Any]:
    await engine.skills.remove(arguments.name, arguments.agent or ())
    return {"name": arguments.name}


async def _bind(engine: Engine, arguments: argparse.Namespace) -> dict[str, Any]:
    await engine.skills.bind(arguments.agent, arguments.name)
    return {"agent": arguments.agent, "name": arguments.name}


async def _unbind(engine: Engine, arguments: argparse.Namespace) -> dict[str, Any]:
    await engine.skills.bind(arguments.agent, arguments.name, assigned=False)
    return {"agent": arguments.agent, "name": arguments.name}


async def _select(engine: Engine, arguments: argparse.Namespace) -> dict[str, Any]:
    session = SessionId(arguments.session)
    selected = await engine.skills.select(session, arguments.names)
    unknown = [name for name in arguments.names if name not in selected]
    if unknown:
        told = one_line(", ".join(unknown))
        print(f"greenroom: the session's agent does not have: {told}", file=sys.stderr)
    return {"session": session, "selected": " ".join(selected) or "nothing"}


async def _forget(engine: Engine, arguments: argparse.Namespace) -> dict[str, Any]:
    agent, number = arguments.agent, arguments.number
    await engine.agents.descriptor(agent)
    count = await engine.forget(agent, number)
    return {"agent": agent, "forgotten": count}


_SKILL_CHANGES: Final[Mapping[str, _Change]] = {
    "add": _add,
    "remove": _remove,
    "bind": _bind,
    "unbind": _unbind,
    "select": _select,
}
