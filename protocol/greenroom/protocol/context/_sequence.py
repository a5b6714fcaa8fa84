"""What is tried about a request that is too large, in which order (CTX-15, CTX-17).

A *sequence* begins with pressure: an estimate, or a provider's refusal. Its steps are
taken in one order and each at most once: long results of tools are shortened, the
newest last; older turns are hidden behind a new boundary; the limit of the output is
lowered, first where it alone is too much. After each step that changed the request it
is sent, unless what is known of the limit says that it still can't fit. When nothing is
left the sequence ends with one of three errors. A completed response closes it, and the
next one begins anew; how many there may be is `RecoveryLatch`'s.

Pure: what a step does to a request is the caller's.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, final

import attrs

RecoveryError = Literal[
    "retry_projection_unchanged",
    "retry_projection_cannot_fit",
    "provider_rejected_retry",
]
"""Why a sequence ends without another payload: nothing could be made smaller; what
was made smaller is still larger than a limit that is known; or the provider refused
the smaller ones too, and nothing is left."""

LEAST_RESERVE: Final = 256
MOST_RESERVE: Final = 8_192


class Step(Enum):
    """The steps of a sequence, in their order."""

    STUB_OLDER = "stub_older"
    STUB_NEWEST = "stub_newest"
    COMPACT = "compact"
    LOWER_OUTPUT = "lower_output"


@final
@attrs.frozen
class RecoverySequence:
    """How far a sequence has come."""

    taken: frozenset[Step] = frozenset()
    """Steps that were taken, whatever they brought."""
    changed: bool = False
    """A step changed the request that the sequence began with."""
    sent: bool = False
    """A changed request was sent, and refused since."""

    def next(self, *, output_first: bool = False) -> Step | None:
        """Return the step to be taken; ``None``: there is none left.

        *output_first*: the answer that was asked for is what is too large, so that
        nothing that was said has to give way.
        """
        if output_first and Step.LOWER_OUTPUT not in self.taken:
            return Step.LOWER_OUTPUT
        return next((step for step in Step if step not in self.taken), None)

    def after(self, step: Step, *, changed: bool) -> RecoverySequence:
        """Return the sequence after *step*, and whether that changed anything."""
        return RecoverySequence(self.taken | {step}, self.changed or changed, self.sent)

    def refused(self) -> RecoverySequence:
        """Return the sequence after the provider refused what it had changed."""
        return attrs.evolve(self, sent=self.changed)

    @property
    def error(self) -> RecoveryError:
        """Why it ends, when no step is left."""
        if self.sent:
            return "provider_rejected_retry"
        if self.changed:
            return "retry_projection_cannot_fit"
        return "retry_projection_unchanged"


def strict_reserve(context: int) -> int:
    """Return the tokens that a strict retry keeps free beside the answer (CTX-17)."""
    return max(LEAST_RESERVE, min(context // 10, MOST_RESERVE))


def strict_output(context: int, prompt: int, requested: int) -> int | None:
    """Return the output limit of a strict retry; ``None``: there is no lower one.

    Args:
        context: the tokens that the provider's limit allows, prompt and answer.
        prompt: tokens of the messages and the tools.
        requested: the output limit of the request that was refused.
    """
    room = context - strict_reserve(context) - prompt
    lowered = min(requested // 2, room)
    return lowered if lowered >= 1 else None
