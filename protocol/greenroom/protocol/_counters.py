"""The three counters of a run, and their rules (RUN-03).

A *round* is one model response with the settlement of its tool batch; a *request* is
one exact payload; an *attempt* is one real send of it. Entering a round changes
nothing else; advancing the request restarts the attempts; an attempt needs a
request.
"""

from __future__ import annotations

from typing import Final, final

import attrs

from ._errors import GreenroomError

MAX_SAFE_INTEGER: Final = 2**53 - 1
"""The largest integer that every JSON reader keeps exact."""


class CounterError(GreenroomError):
    """A counter may not take that step; nothing has changed."""

    code = "counter_error"


@final
@attrs.frozen
class Counters:
    """Where a run stands."""

    round: int = 0
    request_seq: int = 0
    attempt: int = 0

    def enter_round(self) -> Counters:
        """Return the counters of the next logical round."""
        return attrs.evolve(self, round=_next("round", self.round))

    def advance_request(self) -> Counters:
        """Return the counters of the next payload, no attempt made yet."""
        seq = _next("request_seq", self.request_seq)
        return attrs.evolve(self, request_seq=seq, attempt=0)

    def enter_attempt(self) -> Counters:
        """Return the counters of the next send of the payload.

        Raises:
            CounterError: there is no payload yet.
        """
        if self.request_seq < 1:
            raise CounterError("can't count an attempt before the first request")
        return attrs.evolve(self, attempt=_next("attempt", self.attempt))


def _next(name: str, value: int) -> int:
    if not 0 <= value < MAX_SAFE_INTEGER:
        raise CounterError(f"{name} {value!r} has no safe successor")
    return value + 1
