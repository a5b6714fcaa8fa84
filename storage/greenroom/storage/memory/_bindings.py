"""What clients are bound to, in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import attrs

from greenroom.protocol import SessionId

from .._bindings import Binding
from ._undo import Undo


@final
@attrs.define(eq=False)
class BindingTable:
    """Changed inside a write of `MemoryStore` only."""

    _undo: Undo
    _rows: dict[tuple[str, SessionId], Binding] = attrs.field(
        factory=dict[tuple[str, SessionId], Binding]
    )

    def find(self, client: str | None, session: str | None) -> list[Binding]:
        """See `BindingReader.bindings`."""
        return [
            row
            for _, row in sorted(self._rows.items())
            if client in (None, row.client_id) and session in (None, row.session_id)
        ]

    def put(self, row: Binding) -> None:
        """Keep *row*, unless there is one of the same member."""
        key = (row.client_id, row.session_id)
        known = self._rows.get(key)
        if known is None or known.member_id != row.member_id:
            self._undo.put(self._rows, key, row)

    def drop(self, doomed: Callable[[Binding], bool]) -> int:
        """Forget those that are *doomed*, and return how many."""
        keys = [key for key, row in self._rows.items() if doomed(row)]
        for key in keys:
            self._undo.drop(self._rows, key)
        return len(keys)
