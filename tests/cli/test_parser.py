from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from greenroom.cli import main
from greenroom.cli._exit import ExitCode
from greenroom.cli._main import COMMANDS
from greenroom.cli._parser import build_parser, flags_of

ALL = tuple(COMMANDS)
WORKING = [name for name in ALL if name not in ("demo", "eval", "attach")]


def parse(*argv: str) -> argparse.Namespace:
    return build_parser(ALL).parse_args(argv)


def test_a_flag_that_was_not_given_is_no_setting() -> None:
    given = parse("run", "hello")

    assert given.command == "run"
    assert given.prompt == "hello"
    assert not {"model", "state", "base_url", "max_rounds"} & set(flags_of(given))


def test_every_flag_of_a_run_is_understood(tmp_path: Path) -> None:
    given = parse(
        *("run", "-", "--json", "--yes", "--model", "m", "--base-url", "http://h"),
        *("--provider", "ollama", "--cwd", str(tmp_path), "--session", "s"),
        *("--state", "here", "--max-rounds", "3", "--color", "never"),
    )

    assert (given.prompt, given.json, given.yes) == ("-", True, True)
    assert given.cwd == tmp_path
    assert given.session == "s"
    settings = flags_of(given)
    assert settings["base_url"] == "http://h"
    assert settings["max_rounds"] == 3
    assert (settings["state"], settings["color"]) == ("here", "never")


@pytest.mark.parametrize("command", WORKING)
def test_every_command_that_keeps_something_takes_a_state_folder(command: str) -> None:
    one = {"run": "p", "inspect": "id", "search": "q", "import": "f"}
    needed = [one[command]] if command in one else []
    assert parse(command, *needed, "--state", "here").state == "here"


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["run"],
        ["run", "a", "b"],
        ["inspect"],
        ["run", "a", "--max-rounds", "-1"],
        ["run", "a", "--max-rounds", "many"],
        ["run", "a", "--max-rounds", "9" * 50],
        ["serve", "--cwd", "/no/such/folder"],
        ["serve", "--cwd", "nul\0"],
        ["run", "a", "--mod", "m"],
        ["sessions", "--limit", "0"],
        ["sessions", "--limit", "1001"],
        ["sessions", "--limit", "²"],
        ["config", "--color", "sometimes"],
        ["demo", "--state", "here"],
        ["eval", "--state", "here"],
    ],
)
def test_wrong_usage_is_refused_with_status_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(*argv)

    assert stop.value.code == ExitCode.USAGE
    assert "usage: greenroom" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["", *ALL])
def test_help_lists_every_exit_status(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(*filter(None, [command]), "--help")

    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert [code for code in ExitCode if f"\n  {code.value:<4} " not in shown] == []


@pytest.mark.parametrize("command", ALL)
def test_help_fits_a_terminal_of_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parse(command, "--help")

    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if len(line) > 80 or line != line.rstrip()] == []


@pytest.mark.parametrize("argv", [["doctor", "--bogus"], ["sessions", "list", "\x1bx"]])
def test_a_word_too_many_is_told_with_where_to_look(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == ExitCode.USAGE

    told = capsys.readouterr().err
    assert told.startswith(f"greenroom {argv[0]}: error: unrecognized arguments: ")
    assert told.endswith(f"\n  see greenroom {argv[0]} --help\n")
    assert "\x1b" not in told


def test_only_what_exists_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    parser = build_parser(["config"])

    assert parser.parse_args(["config"]).command == "config"
    with pytest.raises(SystemExit):
        parser.parse_args(["run", "hello"])
    assert "invalid choice" in capsys.readouterr().err
