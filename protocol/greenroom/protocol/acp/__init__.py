"""The Agent Client Protocol: what is the same for every version of it.

A version's messages, and what they mean to a session, are in a sub-package of their
own; which one a connection speaks is negotiated once, by its first request.
"""

from __future__ import annotations

from ._errors import AcpErrorCode as AcpErrorCode
from ._lenient import (
    DEFAULT_ON_ERROR as DEFAULT_ON_ERROR,
    DEFAULT_ON_NULL as DEFAULT_ON_NULL,
    SKIP_INVALID_ITEMS as SKIP_INVALID_ITEMS,
    decode_lenient as decode_lenient,
)
from ._negotiation import (
    SUPPORTED_VERSIONS as SUPPORTED_VERSIONS,
    negotiated_version as negotiated_version,
)
