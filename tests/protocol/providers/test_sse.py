"""Server-sent events, cut anywhere."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st

from greenroom.protocol.providers import SseDecoder, SseEvent, SseLimitError


def feed_all(decoder: SseDecoder, chunks: Iterable[bytes]) -> list[SseEvent]:
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def decoded(*chunks: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    return [*feed_all(decoder, chunks), *decoder.close()]


def data_of(*chunks: bytes) -> list[str]:
    return [event.data for event in decoded(*chunks)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b"data: a\r\rdata: b\r\r", ["a", "b"]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", ["a"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data:a\n\n", ["a"]),
        (b"data:  a\n\n", [" a"]),
        (b": comment\n\ndata: a\n\n: again\n\n", ["a"]),
        (b"data: [DONE]", ["[DONE]"]),
        (b"data: a\n", ["a"]),
        (b"data: a\n\ndata: b", ["a", "b"]),
        (b"id: 7\n\ndata: a\n\n", ["a"]),
        (b"data\n\ndata:\n\ndata: \n\n", []),
        (b"retry: 10\nunknown\ndata: a\n\n", ["a"]),
        (b"data: \xff\xfe\n\n", ["\ufffd\ufffd"]),
        ("data: x\u2028y\u0085z\x0b\x0c\n\n".encode(), ["x\u2028y\u0085z\x0b\x0c"]),
        (b"", []),
    ],
)
def test_a_stream_decodes_to_its_events(stream: bytes, expected: list[str]) -> None:
    assert data_of(stream) == expected


def test_an_event_is_there_as_soon_as_its_blank_line_is() -> None:
    assert SseDecoder().feed(b"data: a\n\n") == [SseEvent("a")]


def test_a_carriage_return_ends_a_line_before_the_next_byte_comes() -> None:
    decoder = SseDecoder()

    assert decoder.feed(b"data: a\r\n\r") == [SseEvent("a")]
    assert decoder.feed(b"\ndata: b\r\n\r\n") == [SseEvent("b")]


def test_an_empty_chunk_between_the_halves_of_a_line_end_changes_nothing() -> None:
    assert data_of(b"data: a\r", b"", b"\ndata: b\n\n") == ["a\nb"]


def test_a_name_is_kept_for_its_event_only() -> None:
    events = decoded(b"event: error\ndata: a\n\ndata: b\n\nevent: x\n\ndata: c\n\n")

    assert [event.name for event in events] == ["error", None, None]


STREAM = (
    '\ufeff: hi\r\ndata: {"a": "é世😀"}\r\n\r\nevent: e\rdata: 1\r\r'
    "data: 2\ndata: 3\n\nid\n\ndata: last"
).encode()


def test_a_stream_cut_at_any_byte_decodes_to_the_same() -> None:
    whole = decoded(STREAM)

    for cut in range(len(STREAM) + 1):
        assert decoded(STREAM[:cut], STREAM[cut:]) == whole
    assert decoded(*(bytes([byte]) for byte in STREAM)) == whole


@given(
    st.lists(st.sampled_from([b"data: x", b"data", b"\n", b"\r", b"\xc3", b":", b"a"])),
    st.data(),
)
def test_any_bytes_cut_anywhere_decode_to_the_same(
    pieces: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(pieces)
    cut = data.draw(st.integers(0, len(stream)))

    assert decoded(stream[:cut], stream[cut:]) == decoded(stream)


@pytest.mark.parametrize(
    "flood",
    [
        b"data: " + b"x" * 200,
        b": " + b"x" * 200,
        b"data: " + b"x" * 60 + b"\ndata: " + b"x" * 60,
        b"data:\n" * 101,
        b"x" * 200 + b"\n",
    ],
)
def test_an_event_without_end_is_refused(flood: bytes) -> None:
    for chunks in ([flood], [bytes([byte]) for byte in flood]):
        with pytest.raises(SseLimitError, match="larger than 100 bytes"):
            feed_all(SseDecoder(max_event_bytes=100), chunks)


def test_many_small_events_are_no_large_one() -> None:
    decoder = SseDecoder(max_event_bytes=20)

    assert len(feed_all(decoder, [b"data: 123\n\n: c\n\n"] * 50)) == 50
