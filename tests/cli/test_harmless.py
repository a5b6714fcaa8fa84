from __future__ import annotations

import json
import unicodedata

import msgspec
import pytest
from hypothesis import given, strategies as st

from greenroom.cli._harmless import harmless, json_line, one_line


def is_dangerous(character: str) -> bool:
    kind = unicodedata.category(character)
    return (kind in ("Cc", "Cs", "Zl", "Zp") and character not in "\n\t") or (
        0x202A <= ord(character) <= 0x202E or 0x2066 <= ord(character) <= 0x2069
    )


@given(st.text(st.characters(categories=["Cc", "Cf", "Cs", "L", "Zl"])))
def test_no_control_character_is_left_over(text: str) -> None:
    assert not any(is_dangerous(character) for character in harmless(text))


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert harmless(text) == text


@pytest.mark.parametrize(
    ("attack", "shown"),
    [
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("\x1b[2J", "␛[2J"),
        ("safe\rrm -rf", "safe␍rm -rf"),
        ("\x9b31m", "\ufffd31m"),
        ("a\x7f\x08b", "a␡␈b"),
        ("abc\u202etxt.exe", "abc\ufffdtxt.exe"),
        ("one\u2028two", "one\ufffdtwo"),
        ("a\u200f\u061c\u200b\u2066b", "a\ufffd\ufffd\ufffd\ufffdb"),
        ("a\U000e0041b", "a\ufffdb"),
        ("\ud800", "\ufffd"),
        ("nul\x00", "nul␀"),
    ],
)
def test_an_attack_becomes_visible(attack: str, shown: str) -> None:
    assert harmless(attack) == shown


def test_line_ends_and_tabs_stay() -> None:
    assert harmless("a\r\nb\n\tc") == "a\nb\n\tc"


def test_one_line_joins_lines_and_cuts() -> None:
    assert one_line(" a\n\n b\tc ") == "a b c"
    assert one_line("x" * 300, 10) == "x" * 9 + "…"


def test_one_line_says_when_only_spaces_were_cut() -> None:
    assert one_line("a" + " " * 1_000 + "b", 10).endswith("…")


@given(st.text(), st.integers(2, 50))
def test_one_line_is_one_bounded_line(text: str, limit: int) -> None:
    line = one_line(text, limit)

    assert len(line) <= limit
    assert len(line.splitlines()) <= 1


@given(st.text(st.characters(codec="utf-8")))
def test_a_line_of_json_is_one_harmless_line_and_means_the_same(text: str) -> None:
    line = json_line({"text": text})

    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert harmless(line) == line
    assert json.loads(line) == {"text": text}


def test_json_can_be_read_back_by_msgspec() -> None:
    hidden = "\x1b\x9b\u202e\x7f\U000e0041"
    line = json_line([hidden])
    assert not set(hidden) & set(line)
    assert msgspec.json.decode(line) == [hidden]
