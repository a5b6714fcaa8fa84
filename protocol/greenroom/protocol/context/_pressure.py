"""Pressure that no failure tells of: the numbers of a completed request (CTX-19).

A provider may take more than its window and cut the beginning without a word, or leave
no room for an answer. Either way the next turn must not begin like this one.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .._messages import Usage
from .._stream import StopReason

PressureKind = Literal["successful_prompt_overflow", "zero_output_length_at_limit"]


class ContextPressure(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """That a completed request was too large, and by which numbers."""

    kind: PressureKind
    context_window_tokens: int
    threshold_tokens: int
    """Input tokens from which on it is pressure."""


def silent_pressure(
    window: int | None, stop: StopReason | None, usage: Usage | None
) -> ContextPressure | None:
    """Return the pressure that a completed attempt was under; ``None``: none.

    Args:
        window: the model's, in tokens; ``None``: not known, so nothing can be told.
        stop: why the model stopped.
        usage: what the provider counted.
    """
    if window is None or usage is None:
        return None
    nearly = -(-99 * window // 100)
    if stop == "complete" and usage.input > window:
        return ContextPressure(
            kind="successful_prompt_overflow",
            context_window_tokens=window,
            threshold_tokens=window,
        )
    if stop == "max_tokens" and usage.output == 0 and usage.input >= nearly:
        return ContextPressure(
            kind="zero_output_length_at_limit",
            context_window_tokens=window,
            threshold_tokens=nearly,
        )
    return None
