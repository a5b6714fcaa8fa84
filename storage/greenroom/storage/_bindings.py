"""The contract for what clients are bound to (SES-08).

A binding is a client's own id and a session's, kept while the client follows the
session; it holds nothing else, and nothing is held by it. It belongs to the member
through which the client came, and is worth nothing without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import attrs

from greenroom.protocol import SessionId

from ._values import Member

MAX_CLIENT_ID: Final = 200


@attrs.frozen
class Binding:
    """That a client follows a session."""

    client_id: str
    session_id: SessionId
    member_id: str
    """Through whom."""
    bound_at: float


class BindingReader(Protocol):
    """Reads of bindings."""

    def bindings(
        self, *, client: str | None = None, session: str | None = None
    ) -> list[Binding]:
        """Return bindings by client and session: of one of these, or all."""
        ...


class BindingWriter(Protocol):
    """Writes of bindings; none of them needs a grant."""

    def bind(
        self, member: Member, client_id: str, scope: SessionId, *, now: float
    ) -> None:
        """Keep that a client follows a session; once, however often it is said.

        Raises:
            RefusedFactError: an id is too long, or is none.
        """
        ...

    def unbind(
        self, member: Member, client_id: str, scopes: Sequence[SessionId]
    ) -> None:
        """Forget bindings of a client, unless it came through another member since."""
        ...

    def drop_stale_bindings(self) -> int:
        """Forget the bindings of members that are dead, and return how many."""
        ...
