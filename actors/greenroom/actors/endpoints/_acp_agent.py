"""The agent's side of the Agent Client Protocol, over whatever carries its messages.

Requests are taken in the order they come; a prompt is registered before the next
message is looked at, so a cancel that follows it finds it. What a message holds is
judged before anything is done about it, and whatever goes wrong is the answer to that
message: it never ends the connection.

Over a pair of byte streams one task reads and one writes. What ends the connection is
the end of the input, a line that is too long, and a client that does not read; then
its turns are stopped, and their sessions stay. In the gateway they go on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar, final

import attrs
import msgspec
import trio

from greenroom.protocol import (
    GreenroomError,
    ImagePart,
    SessionSettings,
    TextPart,
    safe_text,
)
from greenroom.protocol.acp import decode_lenient, negotiated_version, v1
from greenroom.protocol.context import compact_focus
from greenroom.protocol.jsonrpc import (
    NEED_DATA,
    Closed,
    Connection,
    ErrorCode,
    ErrorObject,
    Event,
    Failure,
    Invalid,
    Notification,
    Request,
    Response,
    Withdrawn,
)

from ._acp_compaction import COMMANDS, AcpCompaction
from ._acp_turn import AcpTurn, RefusedError
from ._outbox import MAX_UNSENT_BYTES, Outbox
from ._ports import AgentSession, SessionMaker

_LOG: Final = logging.getLogger("greenroom.endpoints")

FLUSH_SECONDS: Final = 1.0
"""How long the last answers may take to be read, when the connection ends."""

MAX_SESSIONS: Final = 1_000
"""Sessions of one connection."""

TITLE_CHARS: Final = 50
READ_BYTES: Final = 65_536

T = TypeVar("T")


@attrs.frozen
class AgentInfo:
    """How the agent introduces itself."""

    name: str
    version: str


class Extension(Protocol):
    """Serves the methods that ACP does not have."""

    def serves(self, method: str) -> bool:
        """Whether it has that method."""
        ...

    async def call(self, method: str, params: msgspec.Raw) -> object:
        """Return the result of a request, or raise what it is refused with."""
        ...

    def answered(self, result: object) -> None:
        """The result has just been put on its way."""
        ...


def _allow_all(method: str) -> None:
    pass


def _nothing(_: object) -> None:
    pass


@attrs.define(eq=False)
class _OpenSession:
    # One that this connection has made.
    handle: AgentSession
    settings: SessionSettings
    turn: AcpTurn | AcpCompaction | None = None
    request: Request | None = None
    """What the turn answers."""
    prompted: bool = False


async def serve_acp(
    incoming: trio.abc.ReceiveStream,
    outgoing: trio.abc.SendStream,
    make_session: SessionMaker,
    info: AgentInfo,
    *,
    max_unsent_bytes: int = MAX_UNSENT_BYTES,
) -> None:
    """Serve one client until its input ends; neither stream is closed.

    Cancelling it ends the connection at once. Turns that run are stopped either way,
    and a question that waits stays open for whoever opens the session next.
    """
    async with trio.open_nursery() as nursery:
        scope = nursery.cancel_scope
        outbox = Outbox(lambda: _give_up(scope), max_unsent_bytes)
        nursery.start_soon(_send, outbox, outgoing, scope)
        async with trio.open_nursery() as work:
            agent = Agent(make_session, info, outbox.put, work, work)
            await agent.read(incoming)
            work.cancel_scope.cancel()
        outbox.close()
        scope.deadline = trio.current_time() + FLUSH_SECONDS


def _give_up(scope: trio.CancelScope) -> None:
    _LOG.warning("the client does not read what it is sent; its connection is closed")
    scope.cancel()


async def _send(
    outbox: Outbox, outgoing: trio.abc.SendStream, scope: trio.CancelScope
) -> None:
    try:
        await outbox.send_to(outgoing)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        _LOG.info("the client is gone")
        scope.cancel()


@final
@attrs.define(eq=False)
class Agent:
    """The agent of one connection: messages in, messages out."""

    _make_session: SessionMaker
    _info: AgentInfo
    _send: Callable[[bytes], None]
    """Takes the next message for the client, with its LF; never waits or raises."""
    _nursery: trio.Nursery
    """Where requests are served; it ends with the connection."""
    _turns: trio.Nursery
    """Where prompts are worked on; if it outlives the connection, so do they."""
    extension: Extension | None = None
    check: Callable[[str], None] = _allow_all
    """Raises what a method is refused with that the client may not use."""
    connection: Connection = attrs.field(factory=Connection)
    detached: bool = False
    """Its turns are not stopped with `_turns`; they are the engine's."""
    _initialized: bool = attrs.field(default=False, init=False)
    _sessions: dict[str, _OpenSession] = attrs.field(
        factory=dict[str, _OpenSession], init=False
    )
    _replies: dict[int, trio.MemorySendChannel[Response | Failure]] = attrs.field(
        factory=dict[int, trio.MemorySendChannel[Response | Failure]], init=False
    )
    """Where those wait who asked the client something."""

    #### The client, as a turn sees it

    def update(self, session_id: str, update: v1.SessionUpdate) -> None:
        """Tell the client what happens in a session."""
        params = v1.SessionNotification(session_id, update)
        self._send(self.connection.notify("session/update", params))

    async def ask(self, method: str, params: object) -> Response | Failure:
        """Ask the client; when it is cancelled the request is withdrawn."""
        request_id, line = self.connection.request(method, params)
        send, receive = trio.open_memory_channel[Response | Failure](1)
        self._replies[request_id] = send
        self._send(line)
        try:
            return await receive.receive()
        finally:
            del self._replies[request_id]
            self._send(self.connection.withdraw(request_id))

    #### Reading

    def take(self, message: bytes) -> None:
        """Take in one message of a transport that keeps them apart."""
        event = self.connection.receive_message(message)
        if event is not None:
            self._handle(event)

    def leave(self) -> None:
        """The client is gone: nothing more is told or asked, and turns go on."""
        for opened in self._sessions.values():
            if opened.turn is not None:
                opened.turn.leave()

    async def read(self, incoming: trio.abc.ReceiveStream) -> None:
        """Take in what the client sends, until nothing more can come."""
        while True:
            try:
                data = await incoming.receive_some(READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            self.connection.receive_data(bytes(data))
            while (event := self.connection.next_event()) is not NEED_DATA:
                if isinstance(event, Closed):
                    self._say_why(event)
                    return
                self._handle(event)

    def _say_why(self, closed: Closed) -> None:
        self._send(closed.reply)
        if closed.error is not None:
            _LOG.warning("the connection ends: %s", closed.error)

    def _handle(self, event: Event) -> None:
        match event:
            case Request():
                self._request(event)
            case Notification(method="session/cancel", params=params):
                self._cancel(params)
            case Withdrawn(id=request_id):
                self._withdrawn(request_id)
            case Response(id=request_id) | Failure(id=int(request_id)):
                if request_id in self._replies:
                    self._replies[request_id].send_nowait(event)
            case Failure(error=error):
                _LOG.info("the client complains: %s", error.message[:1_000])
            case Invalid(error=error, reply=reply):
                # Not the line itself: what it was to be may have been a token.
                _LOG.info("refused a line of the client: %s", error.message)
                self._send(reply)
            case _:
                # A notification that is not known is none of ours.
                pass

    def _request(self, request: Request) -> None:
        try:
            self._dispatch(request)
        except Exception as exc:
            self._refuse(request, _error_of(exc, request.method))

    def _dispatch(self, request: Request) -> None:
        match request.method:
            case "initialize":
                self._initialize(request)
            case method if self.extension and self.extension.serves(method):
                self._nursery.start_soon(self._extended, request, self.extension)
            case _ if not self._initialized:
                raise _refused(
                    ErrorCode.INVALID_REQUEST,
                    f"{request.method[:100]} must come after initialize",
                )
            case "session/new":
                self.check(request.method)
                self._new_session(request)
            case "session/prompt":
                self.check(request.method)
                self._prompt(request)
            case "session/set_mode":
                self.check(request.method)
                self._set_mode(request)
            case unknown:
                named = unknown[:100]
                error = ErrorObject(
                    ErrorCode.METHOD_NOT_FOUND,
                    f"there is no method {named!r}",
                    {"method": named},
                )
                raise RefusedError(error)

    #### Answering

    def _respond(self, request: Request, result: object) -> None:
        self._send(self.connection.respond(request.id, result))

    def _refuse(self, request: Request, error: ErrorObject) -> None:
        self._send(self.connection.refuse(request.id, error))

    async def _serve(
        self,
        request: Request,
        work: Callable[[], Awaitable[T]],
        done: Callable[[T], object],
        then: Callable[[T], None] = _nothing,
    ) -> None:
        try:
            found = await work()
            result = done(found)
        except Exception as exc:
            self._refuse(request, _error_of(exc, request.method))
        else:
            self._respond(request, result)
            then(found)

    async def _extended(self, request: Request, extension: Extension) -> None:
        try:
            result = await extension.call(request.method, request.params)
        except Exception as exc:
            self._refuse(request, _error_of(exc, request.method))
        else:
            self._respond(request, result)
            extension.answered(result)

    #### Methods

    def _initialize(self, request: Request) -> None:
        asked = v1.decode_initialize(request.params)
        self._initialized = True
        prompts = v1.PromptCapabilities(image=True, embedded_context=True)
        self._respond(
            request,
            v1.InitializeResponse(
                negotiated_version(asked.protocol_version),
                v1.AgentCapabilities(prompt_capabilities=prompts),
                agent_info=v1.Implementation(self._info.name, self._info.version),
            ),
        )

    def _new_session(self, request: Request) -> None:
        params = decode_lenient(request.params, v1.NewSessionRequest)
        folder = Path(params.cwd)
        if not folder.is_absolute():
            shown = params.cwd[:200]
            raise _refused(
                ErrorCode.INVALID_PARAMS, f"cwd must be absolute, not {shown!r}"
            )
        if params.additional_directories:
            raise _refused(
                ErrorCode.INVALID_PARAMS, "additional directories are not supported"
            )
        if len(self._sessions) >= MAX_SESSIONS:
            raise _refused(
                ErrorCode.INVALID_REQUEST,
                f"a connection may have {MAX_SESSIONS} sessions; open another one",
            )
        for server in params.mcp_servers:
            _LOG.warning("MCP servers are not used yet: %s is ignored", server.name)
        self._nursery.start_soon(
            self._serve,
            request,
            lambda: self._make_session(folder),
            self._enter,
            self._tell_commands,
        )

    def _tell_commands(self, session: AgentSession) -> None:
        # Behind the response, which tells the client of the session.
        self.update(session.id, v1.AvailableCommandsUpdate(COMMANDS))

    def _enter(self, session: AgentSession) -> v1.NewSessionResponse:
        settings = session.settings
        assert settings is not None, "a session is loaded when it has just been made"
        self._sessions[session.id] = _OpenSession(session, settings)
        return v1.NewSessionResponse(
            session.id, v1.mode_state(settings.permission_mode)
        )

    def _set_mode(self, request: Request) -> None:
        params = decode_lenient(request.params, v1.SetSessionModeRequest)
        opened = self._session(params.session_id)
        if params.mode_id not in {mode.id for mode in v1.MODES}:
            known = ", ".join(mode.id for mode in v1.MODES)
            raise _refused(
                ErrorCode.INVALID_PARAMS,
                f"there is no mode {params.mode_id[:80]!r}; there is {known}",
            )

        def done(settings: SessionSettings) -> dict[str, object]:
            opened.settings = settings
            return {}

        self._nursery.start_soon(
            self._serve,
            request,
            lambda: opened.handle.configure(permission_mode=params.mode_id),
            done,
        )

    def _prompt(self, request: Request) -> None:
        params = decode_lenient(request.params, v1.PromptRequest)
        opened = self._session(params.session_id)
        if opened.turn is not None:
            raise _refused(
                ErrorCode.INVALID_REQUEST,
                "the session works on a prompt already; cancel it, or wait for its end",
            )
        parts = v1.parts_of(params.prompt)
        title = "" if opened.prompted else _title(params.prompt)
        settings = opened.handle.settings or opened.settings
        focus = _focus_of(parts)
        turn = (
            AcpTurn(
                opened.handle,
                self,
                parts,
                v1.Narration(settings),
                title,
                detached=self.detached,
            )
            if focus is None
            else AcpCompaction(opened.handle, self, focus)
        )
        opened.turn, opened.request = turn, request
        opened.prompted = opened.prompted or focus is None
        self._turns.start_soon(
            self._serve, request, lambda: self._hold(opened, turn), v1.PromptResponse
        )

    async def _hold(
        self, opened: _OpenSession, turn: AcpTurn | AcpCompaction
    ) -> v1.StopReason:
        try:
            return await turn.run()
        finally:
            # Before the response, so that the next prompt finds the session free.
            opened.turn = opened.request = None

    def _cancel(self, params: msgspec.Raw) -> None:
        try:
            wanted = msgspec.json.decode(params, type=v1.CancelNotification)
        except (msgspec.DecodeError, RecursionError):
            return
        opened = self._sessions.get(wanted.session_id)
        if opened is not None and opened.turn is not None:
            opened.turn.cancel()

    def _withdrawn(self, request_id: object) -> None:
        for opened in self._sessions.values():
            asked = opened.request
            if opened.turn is None or asked is None:
                continue
            if (type(asked.id), asked.id) == (type(request_id), request_id):
                opened.turn.cancel()

    def _session(self, session_id: str) -> _OpenSession:
        opened = self._sessions.get(session_id)
        if opened is None:
            raise RefusedError(v1.session_not_found(session_id))
        return opened


def _refused(code: ErrorCode, message: str) -> RefusedError:
    return RefusedError(ErrorObject(code, message))


def _error_of(exc: Exception, method: str) -> ErrorObject:
    # A bug in one request is an answer too; the connection goes on.
    match exc:
        case RefusedError(error=error):
            return error
        case GreenroomError():
            return v1.request_error(exc)
        case msgspec.DecodeError() | RecursionError():
            problem = f"the parameters of {method} are wrong: {exc}"
            return ErrorObject(ErrorCode.INVALID_PARAMS, problem)
        case _:
            _LOG.error("%s failed", method, exc_info=exc)
            problem = "greenroom has failed; its standard error says how"
            return ErrorObject(ErrorCode.INTERNAL_ERROR, problem)


def _focus_of(parts: tuple[TextPart | ImagePart, ...]) -> str | None:
    # What comes with an attachment is no command.
    first = parts[0] if len(parts) == 1 else None
    return compact_focus(first.text) if isinstance(first, TextPart) else None


def _title(blocks: tuple[v1.ContentBlock, ...]) -> str:
    texts = (b.text.strip() for b in blocks if isinstance(b, v1.TextContent))
    said = next(filter(None, texts), "")
    return safe_text(said.partition("\n")[0])[:TITLE_CHARS].strip()
