"""Results made smaller until the conversation fits its window (TOL-17).

Pure: whether something fits is asked of the caller. The last result gives way first,
step by step, then the one before it; a result is never replaced by something longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

CUT_RESULT_CHARS: Final = 500
"""What the first step leaves of a result; it ends in "…"."""

TOO_SMALL: Final = "error: the context window is too small for this result"

NOTHING_FITS: Final = "the tool results do not fit the model's context window"

_NOTES: Final = (TOO_SMALL, "Error", "")


def fitted_results(
    results: Sequence[str], fits: Callable[[Sequence[str]], bool]
) -> tuple[str, ...] | None:
    """Return *results*, downgraded as little as needed to fit.

    ``None`` means that not even empty results fit.
    """
    fitted = list(results)
    if fits(fitted):
        return tuple(fitted)
    for position in reversed(range(len(fitted))):
        for smaller in _candidates(fitted[position]):
            fitted[position] = smaller
            if fits(fitted):
                return tuple(fitted)
    return None


def is_note(result: str) -> bool:
    """Whether a downgraded *result* says nothing of the original any more."""
    return result in _NOTES


def _candidates(result: str) -> Iterator[str]:
    cut = result[:CUT_RESULT_CHARS] + "…"
    return (each for each in (cut, *_NOTES) if len(each) < len(result))
