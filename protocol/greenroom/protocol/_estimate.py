"""How many tokens a text has, without a tokenizer.

A text is estimated by how many characters of each class it has, each class with a
weight, and two corrections for runs: indentation and strings of punctuation cost less
than their parts. The weights are a least-squares fit to the counts of ``o200k`` over
source code of several languages, English prose, JSON, and Chinese, Japanese and Korean
text; `benchmarks/` compares them with it. What a provider has counted is never
estimated again: its count is the anchor that the next request's number begins with
(`context.UsageAnchor`).

Speed comes from C: one translation to class letters, then counting. A long text is
sampled evenly, so that its cost stays small.
"""

from __future__ import annotations

import string
from typing import Final

SAMPLED_OVER: Final = 4_096
"""Bytes up to which all of a text is looked at."""

_WINDOW: Final = 256
_STRIDE: Final = 1_536


def _classes() -> bytes:
    table = bytearray(b"." * 256)
    for letters, name in (
        (string.ascii_lowercase, "a"),
        (string.ascii_uppercase, "A"),
        (string.digits, "0"),
        (" \t", " "),
        ("\n\r", "\n"),
    ):
        for letter in letters:
            table[ord(letter)] = ord(name)
    # Lead bytes of UTF-8 stand for the whole character; the others count nothing.
    for first, end, name in (
        (0x80, 0xC0, "c"),
        (0xC0, 0xE0, "l"),  # Latin with accents, Cyrillic, Greek, Hebrew, Arabic
        (0xE0, 0xE3, "t"),  # Indic and Thai; typographic punctuation
        (0xE3, 0xE4, "k"),  # Kana, and punctuation of that area
        (0xE4, 0xEA, "h"),  # Han
        (0xEA, 0xEE, "g"),  # Hangul
        (0xEE, 0xF0, "w"),  # full-width forms
        (0xF0, 0x100, "e"),  # emoji, rare Han
    ):
        for byte in range(first, end):
            table[byte] = ord(name)
    return bytes(table)


_CLASSES: Final = _classes()
_ASCII: Final[tuple[tuple[bytes, float], ...]] = (
    (b"a", 0.108),
    (b"A", 0.142),
    (b"0", 0.696),
    (b".", 0.864),
    (b" ", 0.436),
    (b"\n", 1.212),
    (b"  ", -0.806),
    (b"..", -0.631),
)
_WIDE: Final[tuple[tuple[bytes, float], ...]] = (
    (b"l", 0.5),
    (b"t", 0.67),
    (b"k", 0.78),
    (b"h", 0.62),
    (b"g", 0.53),
    (b"w", 0.9),
    (b"e", 2.6),
)


def estimate_tokens(text: str) -> int:
    """Return about how many tokens *text* has; 0 only for an empty text."""
    if not text:
        return 0
    data = text.encode("utf-8", "replace")
    scale = 1.0
    if len(data) > SAMPLED_OVER:
        windows = (data[at : at + _WINDOW] for at in range(0, len(data), _STRIDE))
        sample = b"".join(windows)
        data, scale = sample, len(data) / len(sample)
    count = data.translate(_CLASSES).count
    weight = sum(count(name) * each for name, each in _ASCII)
    if not text.isascii():
        weight += sum(count(name) * each for name, each in _WIDE)
    return max(1, round(weight * scale))
