"""Why a client can't go on, one class for each thing that its user can do about it."""

from __future__ import annotations

from typing import Any, Final, cast

from greenroom.protocol import GreenroomError, RemoteProtocolError
from greenroom.protocol.gateway import CloseCode
from greenroom.protocol.jsonrpc import ErrorObject

_MAX_QUOTED: Final = 300

COMES_BACK: Final = frozenset(
    {
        CloseCode.GOING_AWAY,
        CloseCode.TRY_LATER,
        CloseCode.SLOW,
        CloseCode.TIMED_OUT,
        CloseCode.RATE_LIMITED,
        # What proxies say, and what the library says where nothing was said.
        1005,
        1006,
        1011,
        1012,
        1014,
    }
)
"""Close codes after which a client connects again by itself."""

_PASSING_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_HINTS: Final = {
    CloseCode.UNAUTHENTICATED: "give another token: GREENROOM_TOKEN or a token file",
    CloseCode.TOO_BIG: "ask for less at once",
}


class AddressError(GreenroomError):
    """The address is none of a gateway, or no place to send a token to."""

    code = "gateway_address"

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class UnreachableGatewayError(GreenroomError):
    """There is no connection to the address."""

    code = "gateway_unreachable"
    hint = "start one there with: greenroom serve"

    def __init__(self, address: object, why: str) -> None:
        super().__init__(f"no gateway can be reached at {address}: {why[:_MAX_QUOTED]}")


class GatewayRefusedError(GreenroomError):
    """The gateway, or something in front of it, does not let the client in."""

    code = "gateway_refused"

    def __init__(self, status: int, said: str) -> None:
        said = said[:_MAX_QUOTED].strip()
        super().__init__(
            f"the gateway refuses the connection (HTTP {status})"
            f"{': ' if said else ''}{said}"
        )
        self.status = status
        if status == 401:
            self.hint = "give its token: GREENROOM_TOKEN, or a token file"

    @property
    def is_passing(self) -> bool:
        """Whether it is worth to try again."""
        return self.status in _PASSING_STATUSES


class GatewayClosedError(GreenroomError):
    """The gateway ended the connection, and would do so again; see `CloseCode`."""

    code = "gateway_closed"

    def __init__(self, close_code: int, reason: str | None) -> None:
        said = f": {reason[:_MAX_QUOTED]}" if reason else ""
        super().__init__(f"the gateway ended the connection ({close_code}){said}")
        self.close_code = close_code
        if close_code in _HINTS:
            self.hint = _HINTS[CloseCode(close_code)]


class ConnectionLostError(GreenroomError):
    """The connection is lost; whether the last request was done is not known."""

    code = "connection_lost"
    hint = "look at the session before you ask for it again"


class SilentGatewayError(GreenroomError):
    """A request was not answered in time; whether it was done is not known."""

    code = "gateway_silent"
    hint = "look at the session before you ask for it again"

    def __init__(self, method: str) -> None:
        super().__init__(f"the gateway did not answer {method} in time")


class GatewayProtocolError(RemoteProtocolError):
    """What answers at the address does not speak the gateway's protocol."""

    code = "gateway_protocol"
    hint = "is it a gateway of this version of greenroom?"


class CallError(GreenroomError):
    """The gateway refused a request; ``code`` is the engine's word for why."""

    def __init__(self, error: ErrorObject) -> None:
        super().__init__(error.message[: 4 * _MAX_QUOTED])
        self.rpc_code = error.code
        self.code = _member(error.data, "code") or "request_error"
        self.hint = _member(error.data, "hint") or None


def _member(data: Any, name: str) -> str:  # noqa: ANN401 - whatever the peer sent
    value = cast("dict[str, Any]", data).get(name) if isinstance(data, dict) else None
    return value[:_MAX_QUOTED] if isinstance(value, str) else ""
