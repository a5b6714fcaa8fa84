"""The metrics of `greenroom.otel`: names, units and buckets by the conventions.

Needs the extra ``otel``; imported by nothing else.
"""

from __future__ import annotations

from typing import Final, final

import attrs
from opentelemetry.metrics import Counter, Histogram, Meter, UpDownCounter

TOKEN_BUCKETS: Final = tuple(4**power for power in range(14))
SECOND_BUCKETS: Final = tuple(0.01 * 2**power for power in range(14))
"""Both as the conventions have them."""


@final
@attrs.frozen
class Instruments:
    """What an engine is measured by."""

    tokens: Histogram
    seconds: Histogram
    first_chunk: Histogram
    turns: Counter
    retries: Counter
    sessions: UpDownCounter

    @classmethod
    def of(cls, meter: Meter) -> Instruments:
        """Return those of *meter*, which has them once."""
        return cls(
            meter.create_histogram(
                "gen_ai.client.token.usage",
                "{token}",
                "tokens of a request",
                explicit_bucket_boundaries_advisory=TOKEN_BUCKETS,
            ),
            meter.create_histogram(
                "gen_ai.client.operation.duration",
                "s",
                "how long a run, a request or a call took",
                explicit_bucket_boundaries_advisory=SECOND_BUCKETS,
            ),
            meter.create_histogram(
                "gen_ai.client.operation.time_to_first_chunk",
                "s",
                "how long the first piece of a reply was waited for",
                explicit_bucket_boundaries_advisory=SECOND_BUCKETS,
            ),
            meter.create_counter(
                "greenroom.turns", "{turn}", "turns that ended, by their outcome"
            ),
            meter.create_counter(
                "greenroom.retries", "{retry}", "requests that are sent again"
            ),
            meter.create_up_down_counter(
                "greenroom.sessions.open", "{session}", "sessions in memory"
            ),
        )
