"""Where a gateway is. Pure; a token is never a part of it."""

from __future__ import annotations

from typing import Final, final
from urllib.parse import urlsplit

import attrs

from ..gateway import DEFAULT_PORT, is_loopback
from ._errors import AddressError

DEFAULT_URL: Final = f"http://127.0.0.1:{DEFAULT_PORT}/"

_PATH: Final = "/acp"
_ENCRYPTED: Final = {"http": False, "ws": False, "https": True, "wss": True}
_LIKE: Final = f"write it as {DEFAULT_URL}"


@final
@attrs.frozen
class Address:
    """A gateway's place on the network."""

    host: str
    port: int
    path: str
    is_encrypted: bool

    @classmethod
    def of(cls, url: str) -> Address:
        """Return the address in *url*: that of the console, or of the WebSocket.

        Raises:
            AddressError: it is none, or holds more than an address.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as exc:
            raise AddressError(f"the URL can't be read: {exc}", _LIKE) from None
        encrypted = _ENCRYPTED.get(parts.scheme)
        if encrypted is None or not host:
            # Not the URL itself, which may hold what it should not.
            raise AddressError("a gateway's URL begins with http or https", _LIKE)
        if parts.username is not None or parts.query or parts.fragment:
            raise AddressError(
                "a URL is kept in logs, so it holds no token and nothing like it",
                "give the token by GREENROOM_TOKEN, or in a token file",
            )
        if not (url.isascii() and url.isprintable()) or " " in url:
            raise AddressError("the URL holds characters that no URL has", _LIKE)
        path = parts.path.rstrip("/")
        path = path if path.endswith(_PATH) else path + _PATH
        return cls(host, port or (443 if encrypted else 80), path, encrypted)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.is_encrypted else 'ws'}://{host}:{self.port}{self.path}"

    @property
    def host_header(self) -> str:
        """What the request names; the default port is left out (RFC 9112, 3.2)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.is_encrypted else 80
        return host if self.port == default else f"{host}:{self.port}"

    def check_token(self, token: str, *, insecure: bool) -> None:
        """See that a token goes to nobody but the gateway.

        Raises:
            AddressError: it would go unencrypted over a network, and *insecure* does
                not say that this is meant; or no header can carry it.
        """
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise AddressError(
                "a token is made of printable ASCII characters without spaces",
                "is it the right file, or variable?",
            )
        if not (self.is_encrypted or insecure or is_loopback(self.host)):
            raise AddressError(
                f"the token would go unencrypted to {self.host}",
                "use https, or an SSH tunnel, or say --insecure",
            )
