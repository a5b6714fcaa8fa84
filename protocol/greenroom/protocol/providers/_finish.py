"""Why the model stopped, in our words, without losing the provider's (RUN-21)."""

from __future__ import annotations

from typing import Final

from .._stream import ProviderFailure, StopReason
from ._failure import make_failure
from ._overflow import OVERFLOW_CODE

_STOPS: Final[dict[str, StopReason]] = {
    "": "complete",
    "stop": "complete",
    "end": "complete",
    "eos": "complete",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
}
_ERRORS: Final = {
    # Whether the same request may do better: None when the word does not tell.
    "error": None,
    "unknown": None,
    "network_error": True,
    "insufficient_system_resource": True,
}
_ABORTS: Final = frozenset({"abort", "aborted", "cancelled", "canceled"})


def finish_of(
    raw: str, *, has_output: bool
) -> tuple[StopReason, ProviderFailure | None]:
    """Return the stop reason for a Chat Completions finish reason, and its failure."""
    if raw in _STOPS:
        return _STOPS[raw], None
    if raw == "model_context_window_exceeded":
        # z.ai: the window was full. With output it is a cut like any other.
        failure = make_failure("the context window is full", OVERFLOW_CODE)
        return ("max_tokens", None) if has_output else ("error", failure)
    return "error", _failure(raw)


def _failure(raw: str) -> ProviderFailure:
    if raw == "content_filter":
        text = "the provider's content filter stopped the reply (finish reason {!r})"
        return make_failure(text.format(raw), "content_filter", retryable=False)
    if raw in _ERRORS:
        text = "the provider ended the reply with an error (finish reason {!r})"
        code = "provider_finish_error"
        return make_failure(text.format(raw), code, retryable=_ERRORS[raw])
    if raw in _ABORTS:
        text = "the provider broke the reply off (finish reason {!r})"
        return make_failure(text.format(raw), "provider_stream_aborted")
    text = "the provider ended the reply for a reason we don't know ({!r})"
    return make_failure(text.format(raw), "provider_finish_other")
