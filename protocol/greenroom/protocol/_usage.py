"""Sums of token usage. Unknown is not zero (RUN-24)."""

from __future__ import annotations

import msgspec

from ._counters import MAX_SAFE_INTEGER, CounterError
from ._messages import MessageMetadata, Usage


def add_usage(left: Usage | None, right: Usage | None) -> Usage | None:
    """Return the sum, field by field; a field is absent only if absent in both.

    Raises:
        CounterError: a sum is not a safe integer.
    """
    if left is None or right is None:
        return left or right
    return Usage(
        input=_add(left.input, right.input),
        output=_add(left.output, right.output),
        total=_add(left.total, right.total),
        cache_read=_add_known(left.cache_read, right.cache_read),
        cache_write=_add_known(left.cache_write, right.cache_write),
        reasoning=_add_known(left.reasoning, right.reasoning),
    )


def is_counted(usage: Usage) -> bool:
    """Return whether it can be numbers of tokens; else it is not known (RUN-24)."""
    counts = msgspec.structs.astuple(usage)
    return all(n is None or 0 <= n <= MAX_SAFE_INTEGER for n in counts)


def usage_of(metadata: MessageMetadata) -> Usage | None:
    """Return the tokens of a turn; ``None`` when the provider told none."""
    if metadata.input_tokens is None:
        return None
    return Usage(
        input=metadata.input_tokens,
        output=metadata.output_tokens or 0,
        total=metadata.total_tokens or 0,
        cache_read=metadata.cached_tokens,
        cache_write=metadata.cache_write_tokens,
        reasoning=metadata.reasoning_tokens,
    )


def _add(left: int, right: int) -> int:
    total = left + right
    if not 0 <= total <= MAX_SAFE_INTEGER:
        raise CounterError(f"usage {left!r} + {right!r} is not a safe integer")
    return total


def _add_known(left: int | None, right: int | None) -> int | None:
    if left is None or right is None:
        return right if left is None else left
    return _add(left, right)


def with_usage(metadata: MessageMetadata, usage: Usage | None) -> MessageMetadata:
    """Return *metadata* with the tokens of a turn, as `usage_of` reads them."""
    return msgspec.structs.replace(
        metadata,
        input_tokens=usage and usage.input,
        output_tokens=usage and usage.output,
        total_tokens=usage and usage.total,
        cached_tokens=usage and usage.cache_read,
        cache_write_tokens=usage and usage.cache_write,
        reasoning_tokens=usage and usage.reasoning,
    )
