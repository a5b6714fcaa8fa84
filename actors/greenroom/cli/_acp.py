"""``greenroom acp``: an agent for editors, on standard input and output.

Nothing but the protocol may reach standard output, so the command takes its two ends
away first: what is printed by accident goes to standard error, and a child that reads
finds nothing. The end of the input ends the command, and so does a request to
terminate: turns are stopped, their processes with them, and every session stays.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Final, final

import attrs
import trio

from greenroom.actors.endpoints import (
    AgentInfo,
    AgentSession,
    DescriptorReader,
    DescriptorWriter,
    SessionMaker,
    serve_acp,
)
from greenroom.engine import Engine, Provider, open_engine
from greenroom.protocol import GreenroomError

from ._agents import agent_settings, with_agent_model
from ._config import Config
from ._exit import CliError, ExitCode
from ._hooks import make_hooks
from ._provider import open_provider, rate_limits_of
from ._rehearsal import REHEARSAL_ID
from ._run import SYSTEM_PROMPT

LEAVE_SECONDS: Final = 4.5
"""From the end of the input to the end of the process, at most. A turn's cleanup is
bounded by 5 s; an editor that waits so long kills instead, and asks no further."""

_LEAVE_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def acp_command(arguments: argparse.Namespace, config: Config) -> int:
    """Serve an editor until it closes our input, and return the exit status."""
    incoming, outgoing = _take_standard_streams()
    if os.isatty(incoming):
        print(
            "greenroom acp talks to an editor, which starts it; see docs/guides/"
            "editors.md (Ctrl-D ends it)",
            file=sys.stderr,
        )
    return trio.run(_Acp(config, incoming, outgoing).run)


def _take_standard_streams() -> tuple[int, int]:
    # With one of them closed, the next file that is opened would take its place.
    if None in (sys.stdin, sys.stdout, sys.stderr):
        raise CliError("standard input, output and error must be open")
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return incoming, outgoing


@final
@attrs.define(eq=False)
class _Acp:
    config: Config
    incoming: int
    outgoing: int
    _status: ExitCode = ExitCode.OK
    _failure: GreenroomError | None = None

    async def run(self) -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._heed_signals, nursery.cancel_scope)
            # Kept here, for a nursery would make a group of it.
            try:
                await self._serve()
            except GreenroomError as exc:
                self._failure = exc
            nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        return self._status

    async def _serve(self) -> None:
        async with AsyncExitStack() as stack:
            config = with_agent_model(self.config, None)
            provider, model = await open_provider(config, stack)
            if provider.id == REHEARSAL_ID:
                print(
                    "no model is configured: a scripted rehearsal answers",
                    file=sys.stderr,
                )
            engine = await stack.enter_async_context(
                open_engine(
                    state=self.config.state,
                    provider=provider,
                    rate_limits=rate_limits_of(self.config, provider),
                    program="greenroom acp",
                    hooks=make_hooks(self.config.hooks, os.environ),
                )
            )
            await serve_acp(
                DescriptorReader(self.incoming),
                DescriptorWriter(self.outgoing),
                self._maker(engine, provider, model),
                AgentInfo("greenroom", version("greenroom")),
            )
            _leave_within(LEAVE_SECONDS, self._status)

    def _maker(self, engine: Engine, provider: Provider, model: str) -> SessionMaker:
        async def make(folder: Path) -> AgentSession:
            return await engine.create_session(
                workspace=folder,
                provider=provider.id,
                model=model,
                max_rounds=self.config.max_rounds,
                **await agent_settings(engine, self.config, None, SYSTEM_PROMPT),
            )

        return make

    async def _heed_signals(self, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(*_LEAVE_SIGNALS) as signals:
            async for _ in signals:
                self._status = ExitCode.INTERRUPTED
                _leave_within(LEAVE_SECONDS, self._status)
                scope.cancel()


def _leave_within(seconds: float, status: ExitCode) -> None:
    # What is durable is on disk, and a child whose engine is gone ends itself.
    timer = threading.Timer(seconds, os._exit, (status,))
    timer.daemon = True
    timer.start()
