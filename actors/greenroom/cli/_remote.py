"""Sessions of a gateway, for the commands that talk with one; ``run --remote``."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, final

import attrs
import trio

from greenroom.actors.kernel import SystemIds
from greenroom.client import (
    Attachment,
    CallError,
    Client,
    ConnectionLostError,
    SilentGatewayError,
    open_client,
)
from greenroom.engine import TurnFailedError
from greenroom.protocol import (
    ActionBlock,
    Answer,
    Event,
    InteractionError,
    InteractionSettled,
    MessagesChanged,
    SessionId,
    StreamCompleted,
    StreamFailed,
    StreamUpdated,
)
from greenroom.protocol.gateway import (
    MAX_PAGE,
    AnswerPending,
    Attached,
    Compact,
    CompactResult,
    Configure,
    CreateSession,
    InteractionList,
    ListSessions,
    Nothing,
    OneSession,
    PromptResult,
    SendPrompt,
    SessionItem,
    SessionList,
    SessionRef,
    Settings,
)

from ._config import Config
from ._conversation import Conversation
from ._exit import CliError
from ._harmless import one_line
from ._look import beginning_with
from ._rehearsal import REHEARSAL_ID
from ._tokens import client_token
from ._view import Compaction, View

_MAX_PAGES: Final = 10
_AGAIN_SECONDS: Final = 0.5
_GOES_ON: Final = frozenset({"deadline_exceeded", "gateway_stopped"})
"""Why a prompt was not answered although its turn may go on."""

_TOO_LATE: Final = frozenset(
    {
        "unknown_interaction",
        "already_answered",
        "expired",
        "out_of_order",
        "wrong_answer",
        "turn_ended",
    }
)
"""An answer that does not count; what waits then has to be looked at again."""

_NOT_OURS: Final = {
    "base_url": "--base-url",
    "provider": "--provider",
    "state": "--state",
    "budget_tokens": "--budget-tokens",
    "budget_money": "--budget-money",
    "budget_seconds": "--budget-seconds",
}
"""Flags that are the gateway's to say."""


@final
@attrs.define(eq=False)
class Outages:
    """Tells the user when the connection is lost, and when it is back."""

    view: View | None = None

    def __call__(self, is_connected: bool) -> None:
        if self.view is not None:
            self.view.note(
                "connected again"
                if is_connected
                else "the connection is lost; trying again"
            )


@asynccontextmanager
async def connecting(
    url: str, arguments: argparse.Namespace
) -> AsyncGenerator[tuple[Client, Outages]]:
    """Connect to the gateway at *url* with the token that the user has.

    Raises:
        CliError: the token can't be read.
        GreenroomError: see `open_client`.
    """
    outages = Outages()
    token = client_token(arguments.token_file, os.environ)
    async with open_client(
        url, token=token, insecure=arguments.insecure, on_change=outages
    ) as client:
        yield client, outages


def run_remotely(arguments: argparse.Namespace, config: Config, prompt: str) -> int:
    """Run a prompt in the engine of a gateway and return the exit status."""
    given = [flag for name, flag in _NOT_OURS.items() if _is_given(arguments, name)]
    if given:
        raise CliError(
            f"{given[0]} is for an engine of this process",
            hint="it is said to the gateway where that is started",
        )
    return trio.run(_run, arguments, config, prompt)


def _is_given(arguments: argparse.Namespace, name: str) -> bool:
    return getattr(arguments, name, None) is not None


async def _run(arguments: argparse.Namespace, config: Config, prompt: str) -> int:
    async with connecting(arguments.remote, arguments) as (client, outages):
        item = await _session(client, arguments, config, prompt)
        outages.view = view = View.make(arguments, config, item.id)
        view.begin(rehearsed=item.settings.provider == REHEARSAL_ID)
        session = RemoteSession(client, item.id)
        return await Conversation(session, view, arguments.yes).hold(prompt)


async def _session(
    client: Client, arguments: argparse.Namespace, config: Config, prompt: str
) -> SessionItem:
    asked: dict[str, Any] = {
        "workspace": None if arguments.cwd is None else str(arguments.cwd),
        "model": arguments.model,
        "max_rounds": arguments.max_rounds or None,
    }
    if config.origins["permission_mode"] != "default":
        asked["permission_mode"] = config.permission_mode
    if arguments.session is None:
        title = prompt.splitlines()[0][:200]
        made = CreateSession(title=title, agent=arguments.agent, **asked)
        return (await client.call("session/create", made, OneSession)).session
    item = await remote_session(client, arguments.session)
    names = {"permission_mode": "permissionMode", "max_rounds": "maxRounds"}
    changes = {names.get(k, k): v for k, v in asked.items() if v is not None}
    if changes:
        await client.call("session/configure", Configure(item.id, changes), Settings)
    return item


async def remote_session(client: Client, target: str) -> SessionItem:
    """Return the session whose id is *target* or, as no other, begins with it.

    Raises:
        CliError: there is none, or several.
    """
    found = [item for item in await _used_last(client) if item.id.startswith(target)]
    whole = beginning_with(target, found)
    for item in found:
        if item.id == whole:
            return item
    try:
        # It may be one that was not used for long.
        got = await client.call("session/get", SessionRef(target), OneSession)
    except CallError as exc:
        if exc.code != "session_not_found":
            raise
        raise CliError(
            f"the gateway has no session {one_line(target)!r}",
            hint="greenroom attach without a session attaches to the newest",
        ) from exc
    return got.session


async def _used_last(client: Client) -> list[SessionItem]:
    found: list[SessionItem] = []
    before = None
    for _ in range(_MAX_PAGES):
        asked = ListSessions(limit=MAX_PAGE, before=before)
        page = await client.call("session/list", asked, SessionList)
        found += page.sessions
        before = page.next
        if before is None:
            break
    return found


@final
@attrs.define(eq=False)
class RemoteSession:
    """A session of a gateway; see `Talk`."""

    client: Client
    id: SessionId
    _is_stale: bool = attrs.field(default=True, init=False)
    """Whether something may have changed in what waits for an answer."""
    _waiting: tuple[ActionBlock, ...] = attrs.field(default=(), init=False)

    def follow(self) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        return self._follow()

    @asynccontextmanager
    async def _follow(self) -> AsyncGenerator[AsyncIterator[Event]]:
        async with self.client.attach(self.id) as attachment:
            # From here on nothing is missed.
            self.see(await anext(attachment))
            yield _Events(self, attachment)

    def see(self, item: Event | Attached) -> None:
        """Note what an event may mean for what waits for an answer."""
        match item:
            case StreamUpdated():
                self._is_stale |= item.kind == "action"
            case MessagesChanged():
                self._is_stale |= any(
                    isinstance(block, ActionBlock) for block in item.message.blocks
                )
            case Attached() | StreamCompleted() | StreamFailed() | InteractionSettled():
                self._is_stale = True
            case _:
                pass

    async def interactions(self) -> tuple[ActionBlock, ...]:
        while self._is_stale:
            self._is_stale = False
            try:
                self._waiting = await self._look()
            except BaseException:
                self._is_stale = True
                raise
        return self._waiting

    async def _look(self) -> tuple[ActionBlock, ...]:
        asked = SessionRef(self.id)
        while True:
            try:
                found = await self.client.call(
                    "interaction/list", asked, InteractionList
                )
            except SilentGatewayError:
                # It has much to do, and the user can do nothing about it.
                pass
            except CallError as exc:
                if exc.code != "deadline_exceeded":
                    raise
            else:
                blocks = (each.block for each in found.interactions)
                return tuple(b for b in blocks if isinstance(b, ActionBlock))
            await trio.sleep(_AGAIN_SECONDS)

    async def answer(self, interaction_id: str, answer: Answer) -> None:
        self._is_stale = True
        asked = AnswerPending(self.id, interaction_id, answer)
        try:
            await self.client.call("interaction/answer", asked, Nothing)
        except CallError as exc:
            if exc.code not in _TOO_LATE:
                raise
            raise InteractionError(exc.code, interaction_id, str(exc)) from exc
        except (ConnectionLostError, SilentGatewayError) as exc:
            raise InteractionError(exc.code, interaction_id, str(exc)) from exc
        finally:
            self._is_stale = True

    async def prompt(self, content: str) -> PromptResult:
        # Made once, so that sending it again joins the turn.
        asked = SendPrompt(self.id, content, SystemIds().uuid())
        return await self.send(asked)

    async def send(self, asked: SendPrompt) -> PromptResult:
        """Send a prompt and return when its turn ends, over any number of deadlines."""
        while True:
            try:
                return await self.client.call("prompt", asked, PromptResult)
            except CallError as exc:
                if exc.code not in _GOES_ON:
                    raise
            await trio.sleep(_AGAIN_SECONDS)

    async def compact(self, focus: str) -> Compaction:
        try:
            done = await self.client.call(
                "session/compact", Compact(self.id, focus), CompactResult
            )
        except CallError as exc:
            if exc.code != TurnFailedError.code:
                raise
            raise TurnFailedError(str(exc)) from exc
        return Compaction(done.outcome, done.why, done.tokens_before, done.tokens_after)

    async def cancel(self) -> None:
        try:
            await self.client.call("cancel", SessionRef(self.id), Nothing)
        except SilentGatewayError:
            pass
        except CallError as exc:
            # It was told to stop, and takes longer.
            if exc.code != "deadline_exceeded":
                raise


@final
@attrs.define(eq=False)
class _Events:
    session: RemoteSession
    attachment: Attachment

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> Event:
        while True:
            item = await anext(self.attachment)
            self.session.see(item)
            if not isinstance(item, Attached):
                return item
