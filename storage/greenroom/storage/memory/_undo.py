"""Changes to dictionaries that can be taken back.

All state of the store in memory is in dictionaries of frozen values. Whoever changes
one does it here, so that a savepoint is a number and a rollback is a walk back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, final

import attrs

K = TypeVar("K")
V = TypeVar("V")


@final
@attrs.define(eq=False)
class Undo:
    """A log of how to take changes back."""

    _steps: list[Callable[[], object]] = attrs.field(factory=list[Callable[[], object]])

    def put(self, table: dict[K, V], key: K, value: V) -> None:
        """Set *key* of *table*."""
        if key in table:
            old = table[key]
            self._steps.append(lambda: table.__setitem__(key, old))
        else:
            self._steps.append(lambda: table.pop(key))
        table[key] = value

    def drop(self, table: dict[K, V], key: K) -> None:
        """Remove *key* of *table*, if it is there."""
        if key in table:
            old = table.pop(key)
            self._steps.append(lambda: table.__setitem__(key, old))

    def mark(self) -> int:
        """Return a savepoint."""
        return len(self._steps)

    def rollback(self, mark: int) -> None:
        """Take back what was changed since *mark*."""
        while len(self._steps) > mark:
            self._steps.pop()()

    def keep(self) -> None:
        """Keep all changes for good."""
        self._steps.clear()
