"""The requests of a session: fitted, described, and described on the tape before sent.

`SessionViews` is what they have in common and outlives runs; nothing of it is needed to
be right, only to be quick: after a restart the next request is looked at whole.
`RequestViews` is a run's, with the settings that the run has.

A manifest that can't be written ends the run where the request carries tools or Skills
or is a recovery's; a plain chat goes on, and the failure is logged (CTX-03).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, final

import attrs
import msgspec

from greenroom.actors.providers import ACP_PROVIDER
from greenroom.protocol import (
    ChatMessage,
    ContributionKind,
    Fact,
    GreenroomError,
    ModelRequest,
    Part,
    ProviderFailure,
    SessionId,
    SessionSettings,
    StorageError,
    ToolDefinition,
    Usage,
    ViewBuilder,
    estimate_tokens,
)
from greenroom.protocol.context import (
    DEFAULT_OUTPUT,
    Chosen,
    Drops,
    Numbers,
    PinnedUser,
    Preflight,
    RequestIdentity,
    RequestKind,
    Sent,
    Tally,
    TapeState,
    UsageAnchor,
    Weights,
    assemble_manifest,
    choose_policy,
    drops,
    exceeds_window,
    generation_hash,
    manifest_fact,
    output_cap,
    prompt_tokens,
    stored_manifest,
    tools_hash,
    tools_tokens,
    usage_anchor,
)
from greenroom.protocol.providers import OVERFLOW_CODE, overflow_of
from greenroom.storage import FencedError

from ._windows import Window, Windows

_LOG: Final = logging.getLogger("greenroom.context")

_NEVER_DROPPED: Final = frozenset(
    {
        "system_prompt",
        "pinned_first_user",
        "new_user_input",
        "resume_target",
        "tool_loop_message",
    }
)


class ViewNotKeptError(GreenroomError):
    """The manifest of a request is not on disk, so the request is not sent (CTX-03)."""

    code = "view_not_kept"


class ContextTooSmallError(GreenroomError):
    """What is never left out does not fit the model's window (CTX-08)."""

    code = OVERFLOW_CODE
    hint = "choose a model with a larger window, or say it in fewer words"


class ViewRecord(Protocol):
    """The tape that manifests go to."""

    @property
    def head(self) -> int:
        """Where the tape ends."""
        ...

    async def append(self, facts: Sequence[Fact]) -> None:
        """Write facts; returns when they are on disk."""
        ...


@final
@attrs.define(eq=False)
class SessionViews:
    """What the requests of one session have in common."""

    session_id: SessionId
    incarnation: str
    """Which life of its tape the session is in."""
    windows: Windows
    now: Callable[[], float]
    chosen: Chosen = attrs.field(factory=choose_policy)
    tally: Tally = attrs.field(factory=Tally, init=False)
    anchor: UsageAnchor | None = attrs.field(default=None, init=False)
    """What a provider counted last."""
    before: Sent | None = attrs.field(default=None, init=False)
    """The request before."""
    _tools: tuple[Sequence[ToolDefinition], int, str] = attrs.field(
        default=((), 0, tools_hash(())), init=False
    )

    def for_run(self, settings: SessionSettings, record: ViewRecord) -> RequestViews:
        """Return what makes the requests of a run with *settings*."""
        return RequestViews(self, settings, record)

    def tools(self, tools: Sequence[ToolDefinition]) -> tuple[int, str]:
        """Return what *tools* weigh, and their hash; reckoned once while the same."""
        if tools is not self._tools[0] and tools != self._tools[0]:
            self._tools = tools, tools_tokens(tools), tools_hash(tools)
        return self._tools[1:]


@final
@attrs.define(eq=False)
class RequestViews:
    """Makes the requests of one run; its ports `views` and `context_budget`."""

    session: SessionViews
    settings: SessionSettings
    record: ViewRecord
    _kept: int = attrs.field(default=0, init=False)
    """The last request that may be sent, as far as its manifest goes."""
    _pin: PinnedUser | None = attrs.field(default=None, init=False)
    """That of the run's first request."""

    @property
    def budgeted(self) -> bool:
        """Whether requests are fitted into a window; else they go as they are."""
        return self.settings.provider != ACP_PROVIDER

    #### Numbers

    def fits(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition]
    ) -> bool:
        """Whether a request of these leaves the model room to answer (TOL-17)."""
        if self.session.windows.find(self.settings).in_force is None:
            return True
        request = ModelRequest(
            model=self.settings.model, messages=tuple(messages), tools=tuple(tools)
        )
        return self.preflight(request).preflight.fits

    def preflight(self, request: ModelRequest) -> Numbers:
        """Return the numbers of *request* as it would be sent now (CTX-07)."""
        session = self.session
        session.tally.show(request.messages)
        return self._numbers(request)

    def _numbers(self, request: ModelRequest) -> Numbers:
        # Of the messages that the tally was shown last.
        session = self.session
        window = self._window()
        weight, _ = session.tools(request.tools)
        tokens, tools, anchored = prompt_tokens(
            session.anchor, self._kind(request), session.tally, weight
        )
        requested = output_cap(request.max_output_tokens, window.in_force)
        preflight = Preflight(window.in_force, requested, tokens, tools)
        estimated = session.tally.whole.tokens + weight
        return Numbers(preflight, window.source, anchored, estimated)

    def _window(self) -> Window:
        unlimited = Window(None, "unknown")
        return self.session.windows.find(self.settings) if self.budgeted else unlimited

    def _kind(self, request: ModelRequest) -> RequestKind:
        _, hashed = self.session.tools(request.tools)
        provider = self.settings.provider
        asked = generation_hash(provider, request)
        return RequestKind(provider, request.model, asked, hashed)

    #### Before a request is sent

    async def assemble(
        self, request: ModelRequest, view: ViewBuilder, identity: RequestIdentity
    ) -> ModelRequest:
        """Return *request* as it is to be sent, with its manifest on the tape.

        The first one of a run leaves out what does not fit, in the order of CTX-08.

        Raises:
            ContextTooSmallError: what is never left out does not fit.
            ViewNotKeptError: the manifest is not on disk, and has to be.
            FencedError: the session has another owner.
        """
        if self.budgeted and identity.origin in ("chat", "resume"):
            self._make_room(request, view)
            request = msgspec.structs.replace(request, messages=view.messages)
        self.session.tally.show(request.messages)
        self._check_fixed(request, view)
        numbers = self._numbers(request)
        request = _with_output(request, numbers.preflight)
        await self._keep(request, view, identity, numbers)
        return request

    def _make_room(self, request: ModelRequest, view: ViewBuilder) -> None:
        while True:
            trial = msgspec.structs.replace(request, messages=view.messages)
            remaining = self.preflight(trial).preflight.remaining
            if remaining is None or remaining >= 1:
                return
            given = drops(self._weights(view), 1 - remaining)
            if given == Drops():
                return
            if given.memory:
                view.drop_contributions("memory_context")
            if given.directives:
                view.drop_contributions("directive_context")
            view.drop_turns(given.turns)

    def _weights(self, view: ViewBuilder) -> Weights:
        tally, front, turns = self.session.tally, view.front_count, view.turns
        starts = [front + turn.index for turn in turns]
        ends = [*starts[1:], front + view.history_count] if starts else []
        return Weights(
            memory=_weight_of(view, "memory_context"),
            directives=_weight_of(view, "directive_context"),
            turns=[
                tally.at(end).tokens - tally.at(start).tokens
                for start, end in zip(starts, ends, strict=True)
            ],
        )

    def _check_fixed(self, request: ModelRequest, view: ViewBuilder) -> None:
        window = self._window().in_force
        parts = view.parts
        if window is None or sum(p.count for p in parts) != self.session.tally.count:
            # Nothing limits it; or a recovery has made it, which knows what it does.
            return
        tools, _ = self.session.tools(request.tools)
        fixed = sum(self._tokens_of(p) for p in parts if p.reason in _NEVER_DROPPED)
        if exceeds_window(window, tools, fixed):
            raise ContextTooSmallError(
                f"the instructions, what the user said and the work on it take about"
                f" {fixed} tokens and the tools {tools}, and the context window has"
                f" {window}"
            )

    def _tokens_of(self, part: Part) -> int:
        tally = self.session.tally
        return tally.at(part.start + part.count).tokens - tally.at(part.start).tokens

    #### The manifest

    async def _keep(
        self,
        request: ModelRequest,
        view: ViewBuilder,
        identity: RequestIdentity,
        numbers: Numbers,
    ) -> None:
        session = self.session
        tape = TapeState(
            session.session_id,
            session.incarnation,
            self.record.head,
            view.anchor_entry,
        )
        manifest = assemble_manifest(
            identity,
            tape,
            session.chosen,
            view,
            session.tally,
            numbers,
            self._kind(request),
            session.before,
            request.messages,
            first_pin=self._pin,
        )
        if identity.origin in ("chat", "resume"):
            self._pin = manifest.pin
        stored = stored_manifest(manifest, session.now())
        try:
            await self.record.append([manifest_fact(stored)])
        except FencedError:
            raise
        except StorageError as exc:
            self._may_go_on(request, view, identity, exc)
        self._kept = identity.request_seq
        session.before = Sent(stored, request.messages, view.left_out_items)

    def _may_go_on(
        self,
        request: ModelRequest,
        view: ViewBuilder,
        identity: RequestIdentity,
        exc: StorageError,
    ) -> None:
        what = (
            f"the manifest of request {identity.request_seq} of {identity.message_id}"
        )
        if request.tools or view.skills or identity.origin == "context_recovery":
            raise ViewNotKeptError(f"{what} was not kept: {exc}") from exc
        _LOG.warning("%s was not kept: %s", what, exc)

    def may_send(self, request_seq: int) -> bool:
        """Whether the manifest of that request is what CTX-03 demands (TRY-21)."""
        return request_seq == self._kept

    #### After it was sent

    def settled(
        self,
        request: ModelRequest,
        view: ViewBuilder,
        usage: Usage | None,
        fault: ProviderFailure | None,
    ) -> None:
        """Learn from an attempt: how the provider counts, and how large its window is.

        Only a completed attempt counts, and only for messages that the next request
        begins with (CTX-12).
        """
        session = self.session
        if fault is not None:
            limit = overflow_of(fault).limit
            if limit is not None:
                session.windows.tell(self.settings.provider, self.settings.model, limit)
        elif request.messages == view.messages:
            session.tally.show(request.messages)
            set_now = usage_anchor(self._kind(request), session.tally, usage)
            session.anchor = set_now or session.anchor


def _weight_of(view: ViewBuilder, kind: ContributionKind) -> int:
    return sum(
        estimate_tokens(each.text) for each in view.contributions if each.kind == kind
    )


def _with_output(request: ModelRequest, preflight: Preflight) -> ModelRequest:
    # A limit that nobody asked for, and that nothing forces, is left to the peer.
    limit = preflight.effective
    if request.max_output_tokens is None and limit == DEFAULT_OUTPUT:
        return request
    return msgspec.structs.replace(request, max_output_tokens=limit)
