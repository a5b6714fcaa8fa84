"""What is searched, and how it is cut into words: the same in every store.

A text is NFKC-normalised and case-folded; a word is a run of letters, marks and
digits. Scripts that don't space their words (CJK, kana, hangul) are cut into
single characters and pairs, so that any part of two characters or more is found.
A query means all of its words; it has no operators.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, cast

import msgspec

from greenroom.protocol import (
    ActionBlock,
    ErrorBlock,
    Fact,
    MessageRecord,
    TextBlock,
)

from ._values import SNIPPET
from .names import (
    MESSAGE_RECORDED,
    SESSION_ARCHIVED,
    SESSION_CONFIGURED,
    is_audit,
)

MAX_INDEXED_CHARACTERS: Final = 65_536
MAX_BLOCK_CHARACTERS: Final = 32_000
MAX_QUERY_CHARACTERS: Final = 1_000
MAX_QUERY_WORDS: Final = 32

_ASCII_WORD = re.compile("[0-9a-z]+")
_UNSPACED = (
    (0x2E80, 0x9FFF),  # radicals, kana, ideographs
    (0xAC00, 0xD7AF),  # hangul
    (0xF900, 0xFAFF),  # compatibility ideographs
    (0x20000, 0x3FFFF),  # further ideographs
)
_UNSEARCHED = (SESSION_CONFIGURED, SESSION_ARCHIVED, MESSAGE_RECORDED)


def folded(text: str) -> str:
    """Return *text* as it is compared: NFKC, without regard to case."""
    return unicodedata.normalize("NFKC", text).casefold()


def index_words(text: str) -> str:
    """Return the words of *text* to be indexed, joined by spaces."""
    return " ".join(_words(text[:MAX_INDEXED_CHARACTERS], singles=True))


def query_words(query: str) -> list[str]:
    """Return the words that an entry must have all of to match *query*."""
    words = dict.fromkeys(_words(query[:MAX_QUERY_CHARACTERS], singles=False))
    return list(words)[:MAX_QUERY_WORDS]


def holds(text: str, words: Iterable[str]) -> bool:
    """Whether *text* has all of the *words* of a query."""
    return set(words) <= set(index_words(text).split(" "))


def searchable_text(fact: Fact) -> str:
    """Return what of *fact* can be found; nothing of audit facts (TAP-10).

    All text in its payload, that is; a message is found as a whole (`said`), and its
    tool calls by their own facts.
    """
    if is_audit(fact.name) or fact.name in _UNSEARCHED:
        return ""
    return "\n".join(_strings(msgspec.json.decode(fact.payload)))


def said(record: MessageRecord) -> str:
    """Return what was said in a message, once it is finished.

    Of each block, and so of each attachment, at most `MAX_BLOCK_CHARACTERS`.
    """
    if record.status == "pending":
        return ""
    parts: list[str] = []
    for block in record.blocks:
        match block:
            case TextBlock() | ErrorBlock():
                parts.append(block.text[:MAX_BLOCK_CHARACTERS])
            case ActionBlock():
                parts += [block.title, block.detail, block.answer or ""]
            case _:
                pass
    return "\n".join(parts)


def snippet_of(text: str, words: Sequence[str]) -> str:
    """Return up to `SNIPPET` characters of *text*, on one line, around a word of it."""
    place = re.search("|".join(map(re.escape, words)), text, re.IGNORECASE)
    first = place.start() if place else 0
    start = max(0, first - SNIPPET // 3)
    # Some more than needed: white space is joined below.
    line = " ".join(text[start : start + 8 * SNIPPET].split())
    cut = ("…" if start else "") + line
    return cut if len(cut) <= SNIPPET else f"{cut[: SNIPPET - 1]}…"


def _strings(value: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON value
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting += cast("dict[str, Any]", item).values()
        elif isinstance(item, list):
            waiting += cast("list[Any]", item)


def _words(text: str, *, singles: bool) -> Iterator[str]:
    plain = folded(text)
    if plain.isascii():
        yield from _ASCII_WORD.findall(plain)
        return
    word = ""
    for char in f"{unicodedata.normalize('NFKC', plain)} ":
        if unicodedata.category(char)[0] in "LMN":
            word += char
        elif word:
            yield from _pieces(word, singles=singles)
            word = ""


def _pieces(word: str, *, singles: bool) -> Iterator[str]:
    start = 0
    for at in range(1, len(word) + 1):
        if at < len(word) and _is_unspaced(word[at]) == _is_unspaced(word[start]):
            continue
        run = word[start:at]
        if not _is_unspaced(run[0]):
            yield run
        else:
            yield from _grams(run, singles=singles)
        start = at


def _grams(run: str, *, singles: bool) -> Iterator[str]:
    if singles or len(run) == 1:
        yield from run
    yield from map("".join, pairwise(run))


def _is_unspaced(char: str) -> bool:
    code = ord(char)
    return any(first <= code <= last for first, last in _UNSPACED)
