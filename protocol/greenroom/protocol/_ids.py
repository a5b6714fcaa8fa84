"""Identities. Making new ones is the kernel's part; here they are only said.

Every identity is text. A run id is a UUID (RUN-01); the identity of a tool
operation is the run, the request in it and the id the provider gave the call
(TOL-01): the provider's id alone is data, not identity.
"""

from __future__ import annotations

from typing import NewType

import msgspec

from ._canonical import canonical_json, sha256_hex

SessionId = NewType("SessionId", str)
RunId = NewType("RunId", str)
MessageId = NewType("MessageId", str)
ItemId = NewType("ItemId", str)
"""One block of a message."""

DEFAULT_AGENT_ID = "default"
"""The builtin agent; used only when an entry point names none (AGT-10)."""


class OperationId(msgspec.Struct, frozen=True, rename="camel"):
    """The identity of one tool operation (TOL-01)."""

    run_id: RunId
    request_seq: int
    provider_tool_call_id: str

    @property
    def hash(self) -> str:
        """SHA-256 over the three parts; part of the journal's provenance keys."""
        return sha256_hex(canonical_json(self))

    @property
    def idempotency_key(self) -> str:
        """A stable key for the outside world: equal for equal operations."""
        return f"greenroom-{self.hash[:40]}"
