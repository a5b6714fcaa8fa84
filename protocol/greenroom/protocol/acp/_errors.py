"""The error codes that the Agent Client Protocol adds to those of JSON-RPC."""

from __future__ import annotations

from enum import IntEnum


class AcpErrorCode(IntEnum):
    """Codes with a meaning of their own."""

    AUTH_REQUIRED = -32000
    RESOURCE_NOT_FOUND = -32002
