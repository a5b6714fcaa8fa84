"""One shape for the token counts of every dialect. Unknown is not zero."""

from __future__ import annotations

from .._messages import Usage
from ._wire import as_count, as_object


def chat_usage(value: object) -> Usage | None:
    """Return the usage that a Chat Completions peer reported, if it is usable.

    Peers count the cache's tokens among the prompt's and the reasoning's among the
    completion's, which is what `Usage` wants. DeepSeek has its own word for a hit.
    """
    raw = as_object(value)
    total = as_count(raw.get("total_tokens"))
    prompt = _or_rest(raw.get("prompt_tokens"), total, raw.get("completion_tokens"))
    output = _or_rest(raw.get("completion_tokens"), total, raw.get("prompt_tokens"))
    if prompt is None or output is None:
        return None
    details = as_object(raw.get("prompt_tokens_details"))
    read = as_count(details.get("cached_tokens"))
    if read is None:
        read = as_count(raw.get("prompt_cache_hit_tokens"))
    thought = as_object(raw.get("completion_tokens_details")).get("reasoning_tokens")
    return Usage(
        input=prompt,
        output=output,
        total=prompt + output,
        cache_read=read,
        cache_write=as_count(details.get("cache_write_tokens")),
        reasoning=as_count(thought),
    )


def _or_rest(value: object, total: int | None, other: object) -> int | None:
    known, rest = as_count(value), as_count(other)
    if known is not None or total is None or rest is None or rest > total:
        return known
    return total - rest
