"""How often a run may send another payload because one was too large (TRY-22).

A *sequence* begins with an overflow and is closed by a completed response; another
overflow before that joins it. Each changed payload of a sequence is a request of its
own. Both are bounded, so that a provider that refuses everything ends the run.
"""

from __future__ import annotations

from typing import Final, final

import attrs

MAX_SEQUENCES: Final = 3
"""Sequences of one run."""

MAX_PAYLOADS: Final = 4
"""Changed payloads of one sequence: smaller results, a summary, a smaller output
limit, and one more."""


@final
@attrs.frozen
class RecoveryLatch:
    """What a run has used of its context recovery."""

    sequences: int = 0
    payloads: int = 0
    """Of the sequence that is open; 0: none is."""

    def begin(self) -> RecoveryLatch | None:
        """Return the latch with one more payload, or ``None`` when none is left."""
        if self.payloads:
            joined = attrs.evolve(self, payloads=self.payloads + 1)
            return joined if joined.payloads <= MAX_PAYLOADS else None
        if self.sequences >= MAX_SEQUENCES:
            return None
        return RecoveryLatch(self.sequences + 1, 1)

    def close(self) -> RecoveryLatch:
        """Return the latch after a completed response."""
        return attrs.evolve(self, payloads=0)
