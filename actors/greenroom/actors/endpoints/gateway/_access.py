"""Who may connect, and what they may do. Nothing here waits or reads anything.

Without a token everybody who reaches the port may do everything, so then it has to be
a loopback address, and a request has to name it: otherwise a page that a browser shows
could have its own name lead to this machine. What a page of another origin asks is
refused in any case. With a token, a client has exactly the scopes of the token.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection, Iterable
from hashlib import sha256
from ipaddress import ip_address
from typing import Final, final
from urllib.parse import urlsplit

import attrs

from greenroom.protocol import GreenroomError
from greenroom.protocol.gateway import SCOPES, Scope

MIN_TOKEN_CHARS: Final = 16
"""A shorter one can be guessed; ``openssl rand -hex 32`` makes a good one."""

MAX_TOKEN_CHARS: Final = 4_096
MAX_TOKENS: Final = 1_000

_AUTHORITY: Final = re.compile(r"(\[[^][@]*\]|[^][@:]*)(?::[0-9]*)?")

ALL: Final[frozenset[Scope]] = frozenset(SCOPES)


class AccessError(GreenroomError):
    """The gateway would be open to more people than it says; nothing was started."""

    code = "gateway_access"

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@attrs.frozen(repr=False)
class Token:
    """What a client shows, kept as a digest, and what it may do."""

    digest: bytes
    scopes: frozenset[Scope]

    @classmethod
    def of(cls, secret: str, scopes: Iterable[Scope] = SCOPES) -> Token:
        """Return the token of a secret.

        Raises:
            AccessError: it is too short to be one, too long, or no header could
                carry it.
        """
        if not MIN_TOKEN_CHARS <= len(secret) <= MAX_TOKEN_CHARS:
            raise AccessError(
                f"a token has {MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} characters, "
                f"not {len(secret)}",
                "make one with: openssl rand -hex 32",
            )
        if not (secret.isascii() and secret.isprintable()) or " " in secret:
            raise AccessError(
                "a token is made of printable ASCII characters without spaces",
                "make one with: openssl rand -hex 32",
            )
        return cls(_digest(secret), frozenset(scopes))


def tokens_of(text: str) -> tuple[Token, ...]:
    """Return the tokens of a file: ``TOKEN [SCOPE,SCOPE]`` a line, ``#`` for remarks.

    Without scopes a token has all of them.

    Raises:
        AccessError: a line is wrong, or there is no token.
    """
    found: list[Token] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2 or len(found) >= MAX_TOKENS:
            raise _wrong_line(number, "holds more than a token and its scopes")
        names = set(words[1].split(",") if len(words) == 2 else SCOPES)
        scopes = scopes_in(names)
        if len(scopes) != len(names):
            raise _wrong_line(number, f"names a scope that is none of {SCOPES}")
        found.append(Token.of(words[0], scopes))
    if not found:
        raise AccessError("there is no token in the token file", "write one into it")
    return tuple(found)


def scopes_in(names: Collection[object]) -> tuple[Scope, ...]:
    """Return those of *names* that are scopes, in their order."""
    return tuple(scope for scope in SCOPES if scope in names)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


@final
@attrs.frozen
class Access:
    """The rules of one gateway."""

    host: str
    """The address that it listens on."""
    tokens: tuple[Token, ...] = ()
    is_encrypted: bool = False
    allow_origins: tuple[str, ...] = ()
    """Origins of pages, as ``https://example.org``, beside the gateway's own."""

    def check(self, *, insecure: bool) -> None:
        """See that nobody is let in by accident.

        Raises:
            AccessError: another address than loopback without a token, or without
                encryption, unless *insecure* says that this is meant.
        """
        if is_loopback(self.host):
            return
        if not self.tokens:
            raise AccessError(
                f"whoever reaches {self.host} could run commands here",
                "give the gateway a token: --token-file, or GREENROOM_TOKEN",
            )
        if not self.is_encrypted and not insecure:
            raise AccessError(
                f"tokens and conversations would go unencrypted over {self.host}",
                "give it a certificate (--tls-cert, --tls-key), or say --insecure "
                "behind something that encrypts",
            )

    def check_address(self, address: str) -> None:
        """See that a name of this machine alone has led to no other address.

        Raises:
            AccessError: others would reach it, by a rule for those who can't.
        """
        if is_loopback(self.host) and not is_loopback(address):
            raise AccessError(
                f"{self.host} leads to {address}, which is reached from elsewhere",
                "listen on 127.0.0.1, or on that address with a token",
            )

    def scopes_of(self, secret: str | None) -> frozenset[Scope] | None:
        """Return what a token allows; ``None``: it is no token of ours.

        Where none is needed any is good. It takes as long for every wrong one.
        """
        if not self.tokens:
            return ALL
        digest = _digest(secret or "")
        found: frozenset[Scope] | None = None
        for token in self.tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token.scopes
        return found if secret else None

    def allows_host(self, host: str | None) -> bool:
        """Whether a request may have named this *host* (with its port)."""
        if not is_loopback(self.host):
            return True
        name = _hostname(host or "")
        known = {_hostname(_netloc(origin)) for origin in self.allow_origins}
        return is_loopback(name) or name in known

    def allows_origin(self, origin: str | None, host: str | None) -> bool:
        """Whether a page of that origin may connect; no browser, no origin."""
        if origin is None:
            return True
        if origin in self.allow_origins:
            return True
        scheme = origin.partition(":")[0]
        return (
            scheme in ("http", "https")
            and bool(host)
            and _authority(_netloc(origin), scheme) == _authority(host, scheme)
        )


def _digest(secret: str) -> bytes:
    return sha256(secret.encode(errors="surrogatepass")).digest()


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _hostname(authority: str) -> str:
    # The port of a forwarded connection may be any.
    found = _AUTHORITY.fullmatch(authority)
    return "" if found is None else found[1].strip("[]").lower()


def _authority(netloc: str, scheme: str) -> str:
    default = ":443" if scheme == "https" else ":80"
    return netloc.lower().removesuffix(default)


def _wrong_line(number: int, problem: str) -> AccessError:
    # Never the line itself, which holds a secret.
    return AccessError(
        f"line {number} of the token file {problem}",
        "write a token and perhaps its scopes: TOKEN read,write",
    )
