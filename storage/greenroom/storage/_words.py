"""What is searched, and how it is cut into words: the same in every store.

A text is NFKC-normalised and case-folded; a word is a run of letters, marks and
digits. Scripts that don't space their words (CJK, kana, hangul) are cut into
single characters and pairs, so that any part of two characters or more is found.
A query means all of its words; it has no operators.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
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

from .names import MESSAGE_RECORDED, SESSION_CONFIGURED, is_audit

MAX_INDEXED_CHARACTERS: Final = 65_536
MAX_QUERY_CHARACTERS: Final = 1_000
MAX_QUERY_WORDS: Final = 32

_ASCII_WORD = re.compile("[0-9a-z]+")
_UNSPACED = (
    (0x2E80, 0x9FFF),  # radicals, kana, ideographs
    (0xAC00, 0xD7AF),  # hangul
    (0xF900, 0xFAFF),  # compatibility ideographs
    (0x20000, 0x3FFFF),  # further ideographs
)
_RECORD = msgspec.json.Decoder(MessageRecord)


def index_words(text: str) -> str:
    """Return the words of *text* to be indexed, joined by spaces."""
    return " ".join(_words(text[:MAX_INDEXED_CHARACTERS], singles=True))


def query_words(query: str) -> list[str]:
    """Return the words that an entry must have all of to match *query*."""
    words = dict.fromkeys(_words(query[:MAX_QUERY_CHARACTERS], singles=False))
    return list(words)[:MAX_QUERY_WORDS]


def searchable_text(fact: Fact) -> str:
    """Return what of *fact* can be found; nothing of audit facts (TAP-10).

    Of a message, what was said in it once it is finished; its tool calls are found
    by their own facts. Of other facts, all text in their payload.
    """
    if is_audit(fact.name) or fact.name == SESSION_CONFIGURED:
        return ""
    if fact.name == MESSAGE_RECORDED:
        return _said(_RECORD.decode(fact.payload))
    return "\n".join(_strings(msgspec.json.decode(fact.payload)))


def _said(record: MessageRecord) -> str:
    if record.status == "pending":
        return ""
    parts: list[str] = []
    for block in record.blocks:
        match block:
            case TextBlock() | ErrorBlock():
                parts.append(block.text)
            case ActionBlock():
                parts += [block.title, block.detail, block.answer or ""]
            case _:
                pass
    return "\n".join(parts)


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
    folded = unicodedata.normalize("NFKC", text).casefold()
    if folded.isascii():
        yield from _ASCII_WORD.findall(folded)
        return
    word = ""
    for char in f"{unicodedata.normalize('NFKC', folded)} ":
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
