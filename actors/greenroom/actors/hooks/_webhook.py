"""A hook that posts the event as JSON to an address."""

from __future__ import annotations

from typing import Final, final
from urllib.parse import urlsplit

import attrs
import httpx2
import msgspec

from greenroom.protocol import HookEvent

from ._command import HookFailedError
from ._hooks import DEFAULT_SECONDS

_HTTP_ERROR: Final = 400


@final
@attrs.frozen
class Webhook:
    """Posts each event to *url*, once: a lost notice is not worth a storm of them.

    With a *token* it is sent as ``Authorization: Bearer``. Redirects are not followed,
    and nothing of the answer is read but its status.
    """

    url: str = attrs.field(validator=lambda _self, _field, value: check_address(value))
    on: frozenset[str]
    seconds: float = DEFAULT_SECONDS
    token: str | None = attrs.field(default=None, repr=False)
    transport: httpx2.AsyncBaseTransport | None = None

    @property
    def name(self) -> str:
        """The host; a path may hold a secret."""
        return urlsplit(self.url).hostname or "webhook"

    async def tell(self, event: HookEvent) -> None:
        """Post *event*.

        Raises:
            HookFailedError: it could not be delivered, or was refused.
        """
        headers = {"content-type": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        body = msgspec.json.encode(event)
        try:
            async with (
                httpx2.AsyncClient(
                    transport=self.transport, timeout=self.seconds, trust_env=False
                ) as client,
                client.stream("POST", self.url, content=body, headers=headers) as reply,
            ):
                status = reply.status_code
        except httpx2.HTTPError as exc:
            raise HookFailedError(f"not delivered: {type(exc).__name__}") from exc
        if status >= _HTTP_ERROR:
            raise HookFailedError(f"the server answered {status}")


def check_address(url: str) -> None:
    """Refuse what is not a plain http or https address.

    Raises:
        ValueError: it is none, or carries a user name or password.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a webhook needs an http or https address")
    if "@" in parts.netloc:
        raise ValueError("an address must not hold a user name or password")
