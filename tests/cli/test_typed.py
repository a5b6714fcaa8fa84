from __future__ import annotations

import pytest

from greenroom.cli._attach import place_of
from greenroom.cli._exit import CliError
from greenroom.cli._tokens import client_token
from greenroom.cli._typed import TYPED, Typed, help_lines, parse_typed, place_in
from greenroom.client import DEFAULT_URL


@pytest.mark.parametrize(
    ("line", "typed"),
    [
        ("hello", Typed("say", "hello")),
        ("//etc is a folder", Typed("say", "/etc is a folder")),
        ("/steer  do it ", Typed("steer", "do it")),
        ("/compact", Typed("compact")),
        ("/compact the door", Typed("compact", "the door")),
        ("/quit", Typed("quit")),
    ],
)
def test_a_line_is_said_or_is_a_command(line, typed):
    assert parse_typed(line) == typed


@pytest.mark.parametrize("line", ["/", "/nothing", "/steer", "/answer ", "/quit now"])
def test_what_means_nothing_is_said_in_a_sentence(line):
    assert isinstance(parse_typed(line), str)


def test_help_tells_every_command():
    text = "\n".join(help_lines())
    assert all(f"/{name}" in text for name in TYPED)


@pytest.mark.parametrize(
    ("text", "count", "place"), [("1", 1, 0), ("3", 3, 2), ("0012", 12, 11)]
)
def test_a_place_is_counted_from_one(text, count, place):
    assert place_in(text, count, "no") == place


@pytest.mark.parametrize(
    ("text", "count"), [("", 1), ("x", 1), ("²", 3), ("0", 1), ("2", 1), ("1", 0)]
)
def test_no_place_is_said_to_be_none(text, count):
    assert isinstance(place_in(text, count, "no"), str)


def test_a_url_comes_before_a_session_and_both_may_be_left_out():
    assert place_of([]) == (DEFAULT_URL, None)
    assert place_of(["abc"]) == (DEFAULT_URL, "abc")
    assert place_of(["http://h/"]) == ("http://h/", None)
    assert place_of(["http://h/", "abc"]) == ("http://h/", "abc")
    for wrong in (["abc", "http://h/"], ["http://h/", "a", "b"]):
        with pytest.raises(CliError):
            place_of(wrong)


def test_a_token_file_comes_before_the_environment(tmp_path):
    assert client_token(None, {}) is None
    assert client_token(None, {"GREENROOM_TOKEN": "t"}) == "t"
    file = tmp_path / "token"
    file.write_text("# remark\n\nfirst read\nsecond\n")
    file.chmod(0o600)
    assert client_token(file, {"GREENROOM_TOKEN": "t"}) == "first"
    file.write_text("# remark\n")
    with pytest.raises(CliError, match="no token"):
        client_token(file, {})
