"""``greenroom run``: one prompt, from the terminal or a script, to its turn's end.

The command is a watcher like any other: it follows the session and answers what
waits. The first Ctrl-C stops the turn, the second leaves; so does a request to
terminate, and a terminal that hangs up. What was done is on the tape either way.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final, final

import attrs
import msgspec
import trio

from greenroom.actors.context import Compacted
from greenroom.actors.sessions import Follower
from greenroom.engine import (
    Engine,
    Provider,
    SessionHandle,
    TurnFailedError,
    TurnRefusedError,
    TurnResult,
    open_engine,
)
from greenroom.protocol import (
    ActionBlock,
    Answer,
    Event,
    Grant,
    InteractionError,
    MessageId,
    StreamCompleted,
    StreamFailed,
)
from greenroom.protocol.context import compact_focus

from ._agents import agent_settings, with_agent_model
from ._budget import budget_of, start_prices
from ._config import Config
from ._exit import CliError, ExitCode
from ._harmless import json_line
from ._hooks import make_hooks
from ._look import beginning_with
from ._options import MAX_LISTED
from ._prompts import Asker, read_prompt
from ._provider import open_provider, rate_limits_of
from ._rehearsal import REHEARSAL_ID
from ._terminal import Terminal, is_capable, wants_color

SYSTEM_PROMPT: Final = """\
You are a careful assistant that works in one folder of the user's machine, the \
workspace, with the tools you are given. Paths are relative to the workspace. Look \
before you change anything, do what was asked and no more, and say shortly what you \
did. When something can't be done, say why."""

_LEAVE_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
_CATCH_UP_SECONDS: Final = 5.0
_STANDARD_INPUT: Final = 0


def run_command(arguments: argparse.Namespace, config: Config) -> int:
    """Run a prompt and return the exit status."""
    if arguments.prompt == "-" and os.isatty(_STANDARD_INPUT):
        print("type the prompt; Ctrl-D on an empty line ends it", file=sys.stderr)
    prompt = read_prompt(arguments.prompt, sys.stdin.buffer.read)
    if compact_focus(prompt) is not None and arguments.session is None:
        raise CliError(
            "there is nothing to compact in a new conversation",
            hint="say which one with --session",
        )
    if arguments.session is None:
        config = with_agent_model(config, arguments.agent)
    return trio.run(_run, arguments, config, prompt)


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
        view = _View.make(arguments, config, session)
        view.begin(rehearsed=provider.id == REHEARSAL_ID)
        return await _Conversation(session, view, arguments.yes).hold(prompt)


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


#### What the user sees


@final
@attrs.define(eq=False)
class _View:
    """The terminal, or lines of JSON."""

    session_id: str
    terminal: Terminal
    asker: Asker
    json: bool

    @classmethod
    def make(
        cls, arguments: argparse.Namespace, config: Config, session: SessionHandle
    ) -> _View:
        # With --json standard output is for the lines alone.
        stream = sys.stderr if arguments.json else sys.stdout
        is_terminal = stream.isatty()
        colors = wants_color(config.color, is_terminal=is_terminal, environ=os.environ)
        live = is_capable(is_terminal=is_terminal, environ=os.environ)

        def write(text: str) -> None:
            stream.write(text)
            stream.flush()

        # The asker shows the whole question, and must be understood without the events.
        asks = os.isatty(_STANDARD_INPUT) and not arguments.yes
        terminal = Terminal(write, colors=colors, live=live, shows_questions=not asks)
        asker = Asker(_STANDARD_INPUT, terminal.ask)
        return cls(session.id, terminal, asker, arguments.json)

    def begin(self, *, rehearsed: bool) -> None:
        if self.json:
            self._line({"type": "session", "sessionId": self.session_id})
        if rehearsed:
            self.note(
                "no model is configured: a scripted rehearsal answers "
                "(see greenroom run --help, or docs/guides/models.md)"
            )

    def note(self, text: str) -> None:
        if self.json:
            print(text, file=sys.stderr)
        else:
            self.terminal.note(text)

    def show(self, event: Event) -> None:
        if self.json:
            self._line(event)
        else:
            self.terminal.show(event)

    def end(self, turn: TurnResult) -> None:
        if self.json:
            self._line(
                {
                    "type": "turn",
                    "sessionId": self.session_id,
                    "messageId": turn.message.id,
                    "outcome": turn.outcome,
                    "stopReason": turn.stop_reason,
                    "text": turn.text,
                    "error": turn.error,
                    "usage": turn.usage,
                    "cost": turn.cost,
                }
            )
            return
        self.leave()

    def compacted(self, done: Compacted) -> None:
        if self.json:
            self._line(
                {
                    "type": "compaction",
                    "sessionId": self.session_id,
                    "outcome": done.outcome,
                    "why": done.why,
                    "before": done.before,
                    "after": done.after,
                    "tokens": done.spent.tokens,
                }
            )
            return
        self.terminal.finish()
        self.note(str(done))
        self.leave()

    async def ask(self, block: ActionBlock) -> Answer:
        self.terminal.finish()
        answer = await self.asker.ask(block)
        self.terminal.answered()
        return answer

    def leave(self) -> None:
        self.terminal.finish()
        self.note(f"session {self.session_id}")

    def _line(self, value: Any) -> None:  # noqa: ANN401 - any value of the protocol
        sys.stdout.write(json_line(value))
        sys.stdout.flush()


#### The turn


@final
@attrs.define(eq=False)
class _Conversation:
    """Prompts, shows and answers until the turn has ended."""

    session: SessionHandle
    view: _View
    yes: bool
    _changed: trio.Event = attrs.field(factory=trio.Event)
    """Something new may wait for an answer."""
    _ended: set[MessageId] = attrs.field(factory=set[MessageId])
    _interrupts: int = 0
    _turn: TurnResult | None = None
    _compacted: Compacted | None = None
    _failure: CliError | None = None

    async def hold(self, prompt: str) -> int:
        async with (
            self.session.follow() as events,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(self._watch, events)
            nursery.start_soon(self._heed_signals, nursery)
            nursery.start_soon(self._answer_all, nursery.cancel_scope)
            await self._settle_open_questions()
            if not self._interrupts:
                await self._prompt(prompt)
            nursery.cancel_scope.cancel()
        if self._failure is not None:
            self.view.leave()
            raise self._failure
        if self._compacted is not None:
            self.view.compacted(self._compacted)
            return ExitCode.OK
        if self._turn is None:
            return ExitCode.INTERRUPTED
        # Last, when nothing is left that could show another event.
        self.view.end(self._turn)
        return _status(self._turn, interrupted=self._interrupts > 0)

    async def _prompt(self, prompt: str) -> None:
        if (focus := compact_focus(prompt)) is not None:
            await self._compact(focus)
            return
        self._turn = await self.session.prompt(prompt)
        with trio.move_on_after(_CATCH_UP_SECONDS):
            await self._shown(self._turn.message.id)

    async def _compact(self, focus: str) -> None:
        try:
            self._compacted = await self.session.compact(focus)
        except TurnFailedError:
            # Stopped: then nothing has changed.
            if not self._interrupts:
                raise

    async def _settle_open_questions(self) -> None:
        # An earlier turn may still wait; its answer comes before the next prompt.
        while True:
            changed = self._changed
            if not await self.session.interactions():
                return
            await changed.wait()

    async def _shown(self, message_id: MessageId) -> None:
        while message_id not in self._ended:
            await self._changed.wait()

    async def _watch(self, events: Follower) -> None:
        async for event in events:
            self.view.show(event)
            if isinstance(event, StreamCompleted | StreamFailed):
                self._ended.add(event.message.id)
            self._tell_change()

    def _tell_change(self) -> None:
        # Whoever waits, waits for the event it had before it looked.
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _answer_all(self, scope: trio.CancelScope) -> None:
        while True:
            changed = self._changed
            questions = await self.session.interactions()
            if not questions:
                await changed.wait()
                continue
            try:
                await self._answer_first(questions[0])
            except CliError as exc:
                self._failure = exc
                scope.cancel()
                return

    async def _answer_first(self, block: ActionBlock) -> None:
        answer = await self._answer(block)
        # It may have been given up while the user thought: then there is a next look.
        with suppress(InteractionError, TurnRefusedError):
            await self.session.answer(block.id, answer)

    async def _answer(self, block: ActionBlock) -> Answer:
        if self.yes and block.action == "tool_call_permission":
            return Grant()
        return await self.view.ask(block)

    async def _heed_signals(self, nursery: trio.Nursery) -> None:
        with trio.open_signal_receiver(signal.SIGINT, *_LEAVE_SIGNALS) as signals:
            async for number in signals:
                self._interrupts += 1
                if number in _LEAVE_SIGNALS or self._interrupts > 1:
                    nursery.cancel_scope.cancel()
                    return
                self.view.note("stopping; Ctrl-C again leaves at once")
                # Beside this loop: the next signal is heard while the turn stops.
                nursery.start_soon(self.session.cancel)


def _status(turn: TurnResult, *, interrupted: bool) -> int:
    if turn.outcome == "completed":
        return ExitCode.OK
    if turn.outcome == "aborted" and interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.RUN_FAILED
