"""``greenroom run``: one prompt, from the terminal or a script, to its turn's end.

The command is a watcher like any other: it follows the session and answers what
waits. The first Ctrl-C stops the turn, the second leaves; so does a request to
terminate, and a terminal that hangs up. What was done is on the tape either way.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, Final, final

import attrs
import msgspec
import trio

from greenroom.actors.sessions import Follower
from greenroom.engine import (
    Engine,
    Provider,
    SessionHandle,
    open_engine,
)
from greenroom.protocol import (
    ActionBlock,
    Answer,
)
from greenroom.protocol.context import compact_focus
from greenroom.protocol.gateway import PromptResult

from ._agents import agent_settings, with_agent_model
from ._budget import budget_of, start_prices
from ._config import Config
from ._conversation import Conversation
from ._exit import CliError
from ._hooks import make_hooks
from ._look import beginning_with
from ._options import MAX_LISTED, folder
from ._prompts import read_prompt
from ._provider import open_provider, rate_limits_of
from ._rehearsal import REHEARSAL_ID
from ._remote import run_remotely
from ._view import Compaction, View

SYSTEM_PROMPT: Final = """\
You are a careful assistant that works in one folder of the user's machine, the \
workspace, with the tools you are given. Paths are relative to the workspace. Look \
before you change anything, do what was asked and no more, and say shortly what you \
did. When something can't be done, say why."""

_STANDARD_INPUT: Final = 0


def run_command(arguments: argparse.Namespace, config: Config) -> int:
    """Run a prompt and return the exit status."""
    if arguments.prompt == "-" and os.isatty(_STANDARD_INPUT):
        print("type the prompt; Ctrl-D on an empty line ends it", file=sys.stderr)
    prompt = read_prompt(arguments.prompt, sys.stdin.buffer.read)
    if arguments.remote is None and arguments.cwd is not None:
        arguments.cwd = _local_folder(arguments.cwd)
    if compact_focus(prompt) is not None and arguments.session is None:
        raise CliError(
            "there is nothing to compact in a new conversation",
            hint="say which one with --session",
        )
    if arguments.remote is not None:
        return run_remotely(arguments, config, prompt)
    if arguments.session is None:
        config = with_agent_model(config, arguments.agent)
    return trio.run(_run, arguments, config, prompt)


def _local_folder(path: Path) -> Path:
    try:
        return folder(str(path))
    except argparse.ArgumentTypeError as exc:
        raise CliError(f"{path} {exc}") from exc


async def _run(arguments: argparse.Namespace, config: Config, prompt: str) -> int:
    async with AsyncExitStack() as stack:
        provider, model = await open_provider(config, stack)
        loading = await stack.enter_async_context(trio.open_nursery())
        stack.callback(loading.cancel_scope.cancel)
        prices = await start_prices(config, loading)
        engine = await stack.enter_async_context(
            open_engine(
                state=config.state,
                provider=provider,
                rate_limits=rate_limits_of(config, provider),
                program="greenroom run",
                hooks=make_hooks(config.hooks, os.environ),
                prices=prices,
            )
        )
        session = await _session(engine, arguments, config, provider, model, prompt)
        view = View.make(arguments, config, session.id)
        view.begin(rehearsed=provider.id == REHEARSAL_ID)
        return await Conversation(_Local(session), view, arguments.yes).hold(prompt)


@final
@attrs.define(eq=False)
class _Local:
    # A session of the engine of this process; see `Talk`.
    session: SessionHandle

    def follow(self) -> AbstractAsyncContextManager[Follower]:
        return self.session.follow()

    async def interactions(self) -> tuple[ActionBlock, ...]:
        return await self.session.interactions()

    async def answer(self, interaction_id: str, answer: Answer) -> None:
        await self.session.answer(interaction_id, answer)

    async def prompt(self, content: str) -> PromptResult:
        turn = await self.session.prompt(content)
        return PromptResult(
            message_id=turn.message.id,
            outcome=turn.outcome,
            stop_reason=turn.stop_reason,
            text=turn.text,
            error=turn.error,
            usage=turn.usage,
            cost=turn.cost,
        )

    async def compact(self, focus: str) -> Compaction:
        done = await self.session.compact(focus)
        return Compaction(
            done.outcome, done.why, done.before, done.after, done.spent.tokens
        )

    async def cancel(self) -> None:
        await self.session.cancel()


async def _session(
    engine: Engine,
    arguments: argparse.Namespace,
    config: Config,
    provider: Provider,
    model: str,
    prompt: str,
) -> SessionHandle:
    if arguments.session is None:
        return await engine.create_session(
            workspace=arguments.cwd or Path.cwd(),
            title=prompt.splitlines()[0],
            provider=provider.id,
            model=model,
            max_rounds=config.max_rounds,
            turn_budget=budget_of(config),
            **await agent_settings(engine, config, arguments.agent, SYSTEM_PROMPT),
        )
    whole = beginning_with(arguments.session, await engine.sessions(MAX_LISTED))
    session = await engine.open_session(whole or arguments.session)
    await session.configure(**_changes(session, arguments, config, provider, model))
    return session


def _changes(
    session: SessionHandle,
    arguments: argparse.Namespace,
    config: Config,
    provider: Provider,
    model: str,
) -> dict[str, Any]:
    # What was not said stays as the session has it; the provider is who is here.
    changes: dict[str, Any] = {"provider": provider.id, "model": model}
    if arguments.cwd is not None:
        changes["workspace"] = str(arguments.cwd)
    if config.origins["permission_mode"] != "default":
        changes["permission_mode"] = config.permission_mode
    if config.max_rounds is not None:
        changes["max_rounds"] = config.max_rounds
    if (budget := budget_of(config)) is not None:
        changes["turn_budget"] = budget
    settings = session.settings
    assert settings is not None
    now = msgspec.structs.asdict(settings)
    return {name: value for name, value in changes.items() if now[name] != value}
