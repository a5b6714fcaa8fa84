"""Any server that speaks Chat Completions, over HTTP.

One client for the life of the provider. It retries nothing (TRY-01), follows no
redirect, keeps no cookie, and reads neither proxies nor certificates from the
environment unless asked to. The key goes into one header and into nothing else: what
the server echoes of it is taken out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Self, final

import httpx2
import msgspec

from greenroom.protocol import (
    MAX_SERVER_DELAY_MS,
    ModelRequest,
    ProviderFailure,
    StreamEvent,
    WireRequest,
    sha256_hex,
)
from greenroom.protocol.providers import (
    BodyDecoder,
    Profile,
    encode_request,
    profile_for,
)

from ._clocks import Clocks
from ._event_stream import EventStream
from ._port import Waiting, ignore_waiting

MIN_SECRET_CHARS: Final = 6
"""A shorter key is a placeholder, and taking it out would tear words apart."""

REDACTED: Final = "[redacted]"

MAX_KEPT_CONNECTIONS: Final = 8

_NO_TIMEOUT: Final = httpx2.Timeout(None)


@final
class ChatCompletionsProvider:
    """A provider over HTTP. Close it with `aclose`, or enter it."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        profile: Profile | str | None = None,
        id: str | None = None,  # noqa: A002 - the port's word
        clocks: Clocks | None = None,
        max_told_ms: int = MAX_SERVER_DELAY_MS,
        trust_env: bool = False,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Prepare a provider; nothing is connected yet.

        Args:
            base_url: up to and without ``/chat/completions``; the profile's usual
                place when absent.
            profile: a dialect or its name; guessed from *base_url* when absent.
            id: what records call it; dialect and host when absent.
            max_told_ms: the longest wait that the server may ask for.
            trust_env: whether proxies and certificates come from the environment.
            transport: what carries the requests, in place of real connections.

        Raises:
            ValueError: no such profile, or an unusable address or key.
        """
        if not isinstance(profile, Profile):
            profile = profile_for(base_url, profile)
        self._url = _endpoint(base_url or profile.base_url)
        self._profile = profile
        self._id = id or _default_id(self._profile, self._url)
        self._key = _usable_key(api_key)
        self._clocks = clocks or Clocks()
        self._max_told_ms = max_told_ms
        self._client = httpx2.AsyncClient(
            headers=_headers(self._key),
            # Without TLS no certificates need to be loaded, which takes a while.
            verify=self._url.scheme == "https",
            timeout=_NO_TIMEOUT,
            limits=_limits(self._url),
            follow_redirects=False,
            trust_env=trust_env,
            transport=transport,
        )

    def __repr__(self) -> str:
        return f"<ChatCompletionsProvider {self._profile.name} {self._url.host}>"

    @property
    def id(self) -> str:
        """What records call it."""
        return self._id

    @property
    def profile(self) -> Profile:
        """The dialect it speaks."""
        return self._profile

    @property
    def replayable(self) -> bool:
        """Always: a reply has no effect before it is acted upon."""
        return True

    @property
    def max_told_ms(self) -> int:
        """The longest wait that the server may ask for before a retry."""
        return self._max_told_ms

    @asynccontextmanager
    async def stream(
        self, request: ModelRequest, *, waiting: Waiting = ignore_waiting
    ) -> AsyncGenerator[AsyncIterator[StreamEvent], None]:
        """Send *request* once; see `Provider.stream`."""
        body = encode_request(request, self._profile)
        salt = sha256_hex(body.decode())[:16]
        tools = frozenset(tool.name for tool in request.tools)
        events = EventStream(
            self._client,
            self._client.build_request("POST", self._url, content=body),
            BodyDecoder(self._profile, salt=salt, tools=tools),
            self._clocks,
            waiting,
            self._redact,
        )
        try:
            yield events
        finally:
            await events.aclose()
            # Nobody asked for sessions, and a server could fill memory with them.
            self._client.cookies.clear()

    def wire(self, request: ModelRequest) -> WireRequest:
        """Return *request* as it is sent, with its headers; see `ShowsWire`."""
        body = encode_request(request, self._profile)
        if self._key is not None and len(self._key) >= MIN_SECRET_CHARS:
            body = body.replace(self._key.encode(), REDACTED.encode())
        return WireRequest(str(self._url), _headers(self._key), body)

    async def aclose(self) -> None:
        """Close the connections that are kept for the next request."""
        await self._client.aclose()

    def _redact(self, failure: ProviderFailure) -> ProviderFailure:
        key = self._key
        if key is None or len(key) < MIN_SECRET_CHARS:
            return failure
        return msgspec.structs.replace(
            failure,
            message=failure.message.replace(key, REDACTED),
            code=failure.code and failure.code.replace(key, REDACTED),
            headers={k: v.replace(key, REDACTED) for k, v in failure.headers.items()},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


def _default_id(profile: Profile, url: httpx2.URL) -> str:
    port = "" if url.port is None else f":{url.port}"
    return f"{profile.name}@{url.host}{port}"


def _limits(url: httpx2.URL) -> httpx2.Limits:
    # A kept connection may be closed by the server just when it is used again, and
    # then a good request fails. That is worth it where it saves a TLS handshake. On
    # the way to a local server it saves nothing, and llama.cpp closes each connection
    # that streamed, although it promises to keep it.
    kept = MAX_KEPT_CONNECTIONS if url.scheme == "https" else 0
    return httpx2.Limits(max_connections=None, max_keepalive_connections=kept)


def _headers(key: str | None) -> dict[str, str]:
    headers = {
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "user-agent": "greenroom",
    }
    return headers if key is None else headers | {"authorization": f"Bearer {key}"}


def _usable_key(key: str | None) -> str | None:
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable() and " " not in key):
        # Without the value: it is a secret even when it is a wrong one.
        raise ValueError("the API key holds characters that no header can carry")
    return key or None


def _endpoint(base_url: str | None) -> httpx2.URL:
    if base_url is None:
        raise ValueError("this provider profile has no usual address: give base_url")
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"base_url can't be read: {error}") from None
    if url.userinfo:
        raise ValueError("base_url holds a user or password: give the key as api_key")
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(
            f"base_url must start with http:// or https:// and name a host, "
            f"got {base_url[:200]!r}"
        )
    path = url.path.rstrip("/").removesuffix("/chat/completions")
    return url.copy_with(path=f"{path}/chat/completions", fragment=None)
