"""How long a provider may take: one clock for each kind of silence.

They are separate because they mean different things: a host that is down is known
in seconds, a model that reads a long prompt is not. Only waiting for the provider
counts, never the time that the consumer takes.
"""

from __future__ import annotations

from typing import final

import attrs


def _is_positive(_: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not value > 0:
        raise ValueError(f"{attribute.name} must be more than 0 seconds, got {value!r}")


@final
@attrs.frozen(kw_only=True)
class Clocks:
    """Limits in seconds; ``math.inf`` means that there is none."""

    connect: float = attrs.field(default=5.0, validator=_is_positive)
    """Until the request can be written: name, socket, TLS."""

    first_byte: float = attrs.field(default=120.0, validator=_is_positive)
    """Until the head of the answer is there; the request is written in it."""

    idle: float = attrs.field(default=120.0, validator=_is_positive)
    """Without a single byte (TRY-24)."""

    content_idle: float = attrs.field(default=300.0, validator=_is_positive)
    """Without anything of the answer, however many heartbeats come."""
