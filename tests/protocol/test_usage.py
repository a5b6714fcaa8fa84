"""Tokens of a turn: as they are kept they are read again."""

from __future__ import annotations

from hypothesis import given, strategies as st

from greenroom.protocol import MessageMetadata, Usage, usage_of, with_usage

COUNTS = st.integers(min_value=0, max_value=1_000)
KNOWN = st.builds(
    Usage,
    input=COUNTS,
    output=COUNTS,
    total=COUNTS,
    cache_read=st.none() | COUNTS,
    cache_write=st.none() | COUNTS,
    reasoning=st.none() | COUNTS,
)


@given(KNOWN, st.none() | KNOWN)
def test_what_is_kept_of_tokens_is_read_again_and_nothing_of_before(
    before: Usage, usage: Usage | None
) -> None:
    metadata = MessageMetadata(provider="p", model="m", cost=1.0)
    kept = with_usage(with_usage(metadata, before), usage)
    assert usage_of(kept) == usage
    assert with_usage(kept, None) == metadata
