"""Telling hooks, each by an actor of its own.

*Rule 1*: telling never waits and never raises; a run goes on as if there were no hook.
*Rule 2*: a hook is told one event after the other, in their order. *Rule 3*: what a
slow hook has not been told is bounded; over the bound events are left out, and that
is logged. *Rule 4*: a hook that does not end in its time is given up on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, final

import attrs
import trio

from greenroom.actors.kernel import (
    ActorExitedError,
    Context,
    MailboxFullError,
    Ref,
    Stop,
)
from greenroom.protocol import HookEvent, Notice, hook_names

_LOG: Final = logging.getLogger("greenroom.hooks")

MAX_WAITING: Final = 256
"""Events that wait for one hook."""

DEFAULT_SECONDS: Final = 10.0
STOP_SECONDS: Final = 1.0
"""How long a hook may take to end after it was cancelled."""


class Hook(Protocol):
    """Something that is told. Foreign code: it may raise, and may never return."""

    @property
    def name(self) -> str:
        """For logs."""
        ...

    @property
    def on(self) -> frozenset[str]:
        """Names of events, or groups of them, that it is told."""
        ...

    @property
    def seconds(self) -> float:
        """How long it may take for one event."""
        ...

    async def tell(self, event: HookEvent) -> None:
        """Take *event* in."""
        ...


Spawn = Callable[[str, Callable[[Context[Any]], Awaitable[None]]], Ref[Any]]


@final
@attrs.define(eq=False)
class Hooks:
    """All hooks of an engine."""

    _told: list[_Told] = attrs.field(factory=list["_Told"], init=False)

    @classmethod
    def start(cls, hooks: Iterable[Hook], spawn: Spawn) -> Hooks:
        """Start an actor for each of *hooks*."""
        made = cls()
        for number, hook in enumerate(hooks):
            ref = spawn(f"hook-{number}", _behaviour(hook))
            made._told.append(_Told(hook, ref))
        return made

    def __call__(self, event: Notice) -> None:
        """Have every hook told that wants *event*. Never waits, never raises."""
        if not self._told or not isinstance(event, HookEvent):
            return
        names = hook_names(event)
        for told in self._told:
            if names & told.hook.on:
                told.tell(event)


def no_hooks(event: Notice) -> None:
    """Tell nobody."""


@final
@attrs.define(eq=False)
class _Told:
    hook: Hook
    ref: Ref[Any]
    left_out: int = 0

    def tell(self, event: HookEvent) -> None:
        try:
            self.ref.tell_nowait(event)
        except MailboxFullError:
            self.left_out += 1
            if self.left_out == 1:
                _LOG.warning("hook %s is too slow; events are left out", self.hook.name)
        except ActorExitedError:
            # The engine is closing.
            return
        else:
            if self.left_out:
                _LOG.warning(
                    "hook %s was not told %d events", self.hook.name, self.left_out
                )
                self.left_out = 0


def _behaviour(hook: Hook) -> Callable[[Context[Any]], Awaitable[None]]:
    async def behave(ctx: Context[Any]) -> None:
        async for message in ctx.mailbox:
            if isinstance(message, Stop):
                # What is left is told within the time that the parent gives.
                await _tell_all(hook, ctx.mailbox.receive_nowait_batch(), ctx)
                return
            await _tell_all(hook, [message], ctx)

    return behave


async def _tell_all(hook: Hook, events: Sequence[object], ctx: Context[Any]) -> None:
    for event in events:
        if isinstance(event, HookEvent):
            await _tell(hook, event, ctx)


async def _tell(hook: Hook, event: HookEvent, ctx: Context[Any]) -> None:
    # At the reaper: a hook that never ends holds up nobody.
    operation = ctx.reaper.start(hook.tell, event, name="tell", parent=ctx.ref)
    try:
        with trio.move_on_after(hook.seconds):
            (await operation.wait()).unwrap()
            return
        _LOG.warning("hook %s took more than %g s", hook.name, hook.seconds)
    except Exception as exc:
        _LOG.warning("hook %s failed: %s: %s", hook.name, type(exc).__name__, exc)
    finally:
        if not operation.done:
            await operation.stop(STOP_SECONDS, STOP_SECONDS)
