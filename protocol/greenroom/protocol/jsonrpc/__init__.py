"""JSON-RPC 2.0 over lines: bytes in, events out, and the other way round.

The machine knows neither side nor transport: an agent and a client use the same one.
It reads nothing of what a method means; parameters and results are raw JSON.
"""

from __future__ import annotations

from ._connection import (
    MAX_OPEN as MAX_OPEN,
    NEED_DATA as NEED_DATA,
    Connection as Connection,
    Event as Event,
    NeedData as NeedData,
)
from ._framing import (
    MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES,
    LineBuffer as LineBuffer,
    MessageTooLargeError as MessageTooLargeError,
)
from ._messages import (
    Closed as Closed,
    ErrorCode as ErrorCode,
    ErrorObject as ErrorObject,
    Failure as Failure,
    Id as Id,
    Invalid as Invalid,
    Notification as Notification,
    Request as Request,
    Response as Response,
    Withdrawn as Withdrawn,
    encode_json as encode_json,
)
