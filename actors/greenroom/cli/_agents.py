"""``greenroom agents``: what agents there are, and every change of one.

Looking reads beside whoever works in the folder. A change opens an engine for a moment,
so that it keeps every rule that an engine keeps, and is done when it is on disk.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from typing import Any, Final, cast

import attrs
import msgspec
import trio

from greenroom.engine import AgentManager, Engine, open_engine
from greenroom.protocol import (
    MAX_CONFIG_BYTES,
    AgentNotFoundError,
    CatalogueEntry,
    ModelChoice,
    catalogue_entry,
    chosen_agent,
)
from greenroom.storage import NoStoreError, Reader, open_reader, read_app_settings
from greenroom.storage.legacy import effective_config

from ._config import Config
from ._exit import CliError, ExitCode
from ._harmless import json_line, one_line
from ._rehearsal import REHEARSAL_ID

_STANDARD_INPUT: Final = "-"


def agents_command(arguments: argparse.Namespace, config: Config) -> int:
    """List agents, or do what the action says."""
    action = arguments.action or "list"
    if action == "list":
        return _list(arguments, config)
    if action == "show":
        return _show(arguments, config)
    done = trio.run(_change, _CHANGES[action], arguments, config)
    if arguments.json:
        sys.stdout.write(json_line(done))
    else:
        print(one_line(" ".join(str(value) for value in done.values())))
    return ExitCode.OK


async def agent_settings(
    engine: Engine, config: Config, agent: str | None, prompt: str
) -> dict[str, Any]:
    """Return what the command line gives a new session of *agent*.

    A permission mode that somebody set goes before the agent's; *prompt* is for an
    agent without one.
    """
    chosen = await engine.agents.select(agent)
    is_set = config.origins["permission_mode"] != "default"
    return {
        "agent": chosen.agent.id,
        "permission_mode": config.permission_mode if is_set else None,
        "system_prompt": chosen.config.system_prompt or prompt,
    }


def with_agent_model(config: Config, agent: str | None) -> Config:
    """Return *config* with the provider and model of a new session's agent.

    They are the agent's, else the application's, where nobody has said who answers. A
    model that somebody named is asked of the agent's provider.
    """
    said = (config.provider, config.base_url)
    if any(value is not None for value in said):
        return config
    try:
        with closing(open_reader(config.state)) as reader:
            wanted = _model_of(reader, agent)
    except NoStoreError:
        return config
    if wanted is None or wanted.provider == REHEARSAL_ID:
        return config
    model = config.model or wanted.model
    return attrs.evolve(config, provider=wanted.provider, model=model)


def _model_of(reader: Reader, agent: str | None) -> ModelChoice | None:
    # An agent that is not there, or can't be run, is refused where it is used.
    app = read_app_settings(reader)
    row = reader.agent(chosen_agent(agent, app.default_agent))
    own = None if row is None else effective_config(reader, row).default_model
    return own or app.default_model


#### Looking


def _list(arguments: argparse.Namespace, config: Config) -> int:
    try:
        with closing(open_reader(config.state)) as reader:
            entries = [catalogue_entry(row) for row in reader.agents()]
    except NoStoreError:
        entries = []
    for entry in entries:
        line = json_line(entry) if arguments.json else f"{_line(entry)}\n"
        sys.stdout.write(line)
    if not entries and not arguments.json:
        print(f"no agents yet in {one_line(str(config.state))}")
    return ExitCode.OK


def _line(entry: CatalogueEntry) -> str:
    notes = [f"{one_line(entry.kind)}/{one_line(entry.source)}"]
    notes += [] if entry.enabled else ["disabled"]
    notes += ["protected"] if entry.protected else []
    notes += [f"can't be run: {entry.unavailable}"] if entry.unavailable else []
    return f"{one_line(entry.id):<20}  {one_line(entry.name)}  ({', '.join(notes)})"


def _show(arguments: argparse.Namespace, config: Config) -> int:
    with closing(open_reader(config.state)) as reader:
        shown = _shown(reader, arguments.agent)
    if arguments.json:
        sys.stdout.write(json_line(shown))
        return ExitCode.OK
    for key, value in shown.items():
        text = value if isinstance(value, str) else json_line(value)
        print(f"{key:<12}  {one_line(text, 2_000)}")
    return ExitCode.OK


def _shown(reader: Reader, agent_id: str) -> dict[str, Any]:
    row = reader.agent(agent_id)
    if row is None:
        raise AgentNotFoundError(agent_id)
    entry = msgspec.to_builtins(catalogue_entry(row))
    if row.kind == "native":
        in_force = msgspec.to_builtins(effective_config(reader, row))
        entry |= {"inForce": in_force}
    return entry


#### Changes

_Change = Callable[[AgentManager, argparse.Namespace], Awaitable[dict[str, Any]]]


async def _change(
    change: _Change, arguments: argparse.Namespace, config: Config
) -> dict[str, Any]:
    async with open_engine(
        state=config.state, builtin=False, program="greenroom agents"
    ) as engine:
        return await change(engine.agents, arguments)


async def _add(agents: AgentManager, arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.acp is None:
        if arguments.arg or arguments.env:
            raise CliError("--arg and --env are for an agent with --acp COMMAND")
        made = await agents.create(
            arguments.name,
            config=_object(arguments.config) if arguments.config else None,
            description=arguments.description,
        )
        return {"id": made}
    if arguments.config:
        raise CliError("an agent with --acp COMMAND has no --config")
    made = await agents.create_acp(
        arguments.name,
        arguments.acp,
        arguments.arg or (),
        dict(_variable(each) for each in arguments.env or ()),
        description=arguments.description,
    )
    return {"id": made}


async def _set(agents: AgentManager, arguments: argparse.Namespace) -> dict[str, Any]:
    shown = {
        "name": arguments.name,
        "description": arguments.description,
        "enabled": arguments.enabled,
    }
    is_shown = any(value is not None for value in shown.values())
    if arguments.patch is None and not is_shown and not arguments.default:
        raise CliError(
            "there is nothing to set",
            hint="give a PATCH, or see greenroom agents set -h",
        )
    if arguments.patch is not None:
        await agents.update(arguments.agent, _object(arguments.patch))
    if is_shown:
        await agents.describe(arguments.agent, **shown)
    if arguments.default:
        await agents.change_app_settings(defaultAgent=arguments.agent)
    return {"id": arguments.agent}


async def _reset(agents: AgentManager, arguments: argparse.Namespace) -> dict[str, Any]:
    await agents.reset(arguments.agent)
    return {"id": arguments.agent}


async def _remove(
    agents: AgentManager, arguments: argparse.Namespace
) -> dict[str, Any]:
    await agents.remove(arguments.agent)
    return {"id": arguments.agent}


async def _import(
    agents: AgentManager, arguments: argparse.Namespace
) -> dict[str, Any]:
    made = await agents.import_legacy(arguments.file)
    if not arguments.json:
        count = len(await agents.list())
        return {"agents": f"{count} agents are there"}
    return {"materialised": made.ids, "recovered": made.recovered}


_CHANGES: Final[Mapping[str, _Change]] = {
    "add": _add,
    "set": _set,
    "reset": _reset,
    "remove": _remove,
    "import": _import,
}


def _object(text: str) -> dict[str, Any]:
    if text == _STANDARD_INPUT:
        text = sys.stdin.read(MAX_CONFIG_BYTES + 1)
    if len(text) > MAX_CONFIG_BYTES:
        raise CliError(f"that is more than {MAX_CONFIG_BYTES} characters")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as exc:
        raise CliError(f"it is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise CliError("it is JSON, but not an object", hint='give {"NAME": VALUE, …}')
    return cast("dict[str, Any]", value)


def _variable(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise CliError(f"{one_line(text)!r} is not NAME=VALUE")
    return name, value
