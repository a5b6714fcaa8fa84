"""From the HTTP client's exceptions to failures that can be classified (TRY-09)."""

from __future__ import annotations

from typing import Final

import httpx2

from greenroom.protocol import ProviderFailure
from greenroom.protocol.providers import failure_from_exception, make_failure

_TRANSIENT: Final = (
    # Subclasses before what they derive from: the first that fits holds.
    (httpx2.ConnectTimeout, "connect_timeout"),
    (httpx2.ReadTimeout, "read_timeout"),
    (httpx2.WriteTimeout, "write_timeout"),
    (httpx2.PoolTimeout, "pool_timeout"),
    (httpx2.TimeoutException, "timeout"),
    (httpx2.ConnectError, "connect_error"),
    (httpx2.ReadError, "read_error"),
    (httpx2.WriteError, "write_error"),
    (httpx2.CloseError, "close_error"),
    (httpx2.NetworkError, "network_error"),
    (httpx2.ProxyError, "proxy_error"),
    (httpx2.RemoteProtocolError, "remote_protocol_error"),
)
_PERMANENT: Final = (
    (httpx2.UnsupportedProtocol, "unsupported_protocol"),
    (httpx2.LocalProtocolError, "local_protocol_error"),
)


def failure_from_transport(error: httpx2.TransportError) -> ProviderFailure:
    """Return what *error* means: whether to try again is its class's to say."""
    for table, retryable in ((_PERMANENT, False), (_TRANSIENT, True)):
        for kind, code in table:
            if isinstance(error, kind):
                return _failure(error, code, retryable)
    return _failure(error, "transport_error", None)


def _failure(
    error: httpx2.TransportError, code: str, retryable: bool | None
) -> ProviderFailure:
    said = failure_from_exception(error)
    message = f"the connection failed: {said.message}"
    return make_failure(message, code, retryable=retryable)
