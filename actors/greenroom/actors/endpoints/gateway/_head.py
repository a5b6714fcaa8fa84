"""The head of an HTTP request, from a bounded buffer.

It is read whole before anything is decided, so that a request can be answered, or be
handed with its bytes to whoever speaks WebSocket. What it says is judged elsewhere.
"""

from __future__ import annotations

from typing import Final, final
from urllib.parse import parse_qsl

import attrs
import h11

MAX_HEAD_BYTES: Final = 16 * 1024
"""As most servers have it; a browser sends less than 2 KiB."""

_TOKEN_NAMES: Final = frozenset(
    {"token", "access_token", "auth", "authorization", "api_key", "apikey", "key"}
)


class HeadError(Exception):
    """The request is none, or none that is taken; never leaves the gateway."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@attrs.frozen(repr=False)
class Head:
    """What a client asks for; it may hold a token, so it shows itself to nobody."""

    version: str
    """Of HTTP: 1.0 or 1.1."""
    method: str
    path: str
    """Without what follows a question mark."""
    query: str
    headers: tuple[tuple[str, str], ...]
    """Their names in lower case, in order."""
    raw: bytes
    """Every byte of it."""
    behind: bytes
    """What was read with it and is no more of it."""

    def header(self, name: str) -> str | None:
        """Return the first header of that name."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def wants_websocket(self) -> bool:
        """Whether the client asks for another protocol, which must be WebSocket."""
        return (self.header("upgrade") or "").strip().lower() == "websocket"

    @property
    def bearer(self) -> str | None:
        """The token of the ``Authorization`` header."""
        scheme, _, token = (self.header("authorization") or "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else None

    @property
    def has_token_in_query(self) -> bool:
        """Whether a secret stands where logs and histories keep it."""
        names = (name.lower() for name, _ in parse_qsl(self.query[:MAX_HEAD_BYTES]))
        return not _TOKEN_NAMES.isdisjoint(names)


@final
@attrs.define(eq=False)
class HeadReader:
    """Takes bytes until they are a head."""

    _http: h11.Connection = attrs.field(
        factory=lambda: h11.Connection(
            h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES
        ),
        init=False,
    )
    _raw: bytearray = attrs.field(factory=bytearray, init=False, repr=False)

    def feed(self, data: bytes) -> Head | None:
        """Take the next bytes in; ``None``: the head is not whole.

        Raises:
            HeadError: it is wrong, or longer than `MAX_HEAD_BYTES`.
        """
        self._raw += data
        if len(self._raw) > MAX_HEAD_BYTES:
            raise HeadError(431, f"a head has at most {MAX_HEAD_BYTES} bytes")
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
        except h11.RemoteProtocolError as exc:
            # Its words quote the line, which may hold a token.
            problem = "the request is not as HTTP has it"
            raise HeadError(exc.error_status_hint, problem) from exc
        match event:
            case h11.Request() if event.http_version not in (b"1.0", b"1.1"):
                raise HeadError(505, "HTTP 1.1 is spoken")
            case h11.Request():
                return self._head(event)
            case h11.NEED_DATA:
                return None
            case _:
                raise HeadError(400, "the connection was closed within the head")

    def _head(self, request: h11.Request) -> Head:
        path, _, query = request.target.decode("latin-1").partition("?")
        headers = tuple(
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in request.headers
        )
        method = request.method.decode("latin-1")
        behind, _ = self._http.trailing_data
        raw = bytes(self._raw).removesuffix(behind)
        version = request.http_version.decode("latin-1")
        return Head(version, method, path, query, headers, raw, behind)
