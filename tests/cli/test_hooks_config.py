"""``[[hooks]]`` in the configuration file: strict, and nothing pasted is repeated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from greenroom.cli import main
from greenroom.cli._config import load_config
from greenroom.cli._exit import CliError, ExitCode
from greenroom.cli._hooks import MAX_HOOKS, make_hooks, read_hooks
from greenroom.engine import CommandHook, Webhook

SECRET = "sk-very-secret"


def load(folder: Path, text: str) -> Any:
    file = folder / "config.toml"
    file.write_text(text)
    return load_config(flags={}, environ={}, file=file).hooks


def test_a_command_and_a_webhook_are_made_as_the_file_says(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        """
        color = "never"
        [[hooks]]
        on = ["needs_you", "run_end"]
        command = ["notify", "-x"]
        [[hooks]]
        on = ["finished"]
        url = "https://example.org/n"
        timeout = 5
        token_env = "TOKEN"
        """,
    )
    command, web = make_hooks(settings, {"TOKEN": SECRET})
    assert isinstance(command, CommandHook)
    assert (command.command, command.on, command.seconds) == (
        ("notify", "-x"),
        {"needs_you", "run_end"},
        10.0,
    )
    assert isinstance(web, Webhook)
    assert (web.url, web.token, web.seconds) == ("https://example.org/n", SECRET, 5.0)
    assert SECRET not in repr(web)


def test_without_hooks_there_are_none(tmp_path: Path) -> None:
    assert load(tmp_path, "") == ()


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({}, "on must be a list of events"),
        ({"on": []}, "on must be a list of events"),
        ({"on": [SECRET], "command": ["x"]}, "on must be a list of events"),
        ({"on": ["finished"]}, "needs either a command or a url"),
        (
            {"on": ["finished"], "command": ["x"], "url": "http://h"},
            "needs either a command or a url",
        ),
        ({"on": ["finished"], "command": []}, "command must be a list"),
        ({"on": ["finished"], "command": "x"}, "command must be a list"),
        ({"on": ["finished"], "command": ["a\0"]}, "command must be a list"),
        ({"on": ["finished"], "url": f"ftp://{SECRET}"}, "url must be an http"),
        ({"on": ["finished"], "url": f"http://u:{SECRET}@h"}, "url must be an http"),
        ({"on": ["finished"], "url": "http://h", "timeout": 0}, "timeout must be"),
        ({"on": ["finished"], "url": "http://h", "timeout": 61}, "timeout must be"),
        (
            {"on": ["finished"], "url": "http://h", "token_env": f"${SECRET}"},
            "the name",
        ),
        (
            {"on": ["finished"], "command": ["x"], "token_env": "T"},
            "is for a hook with",
        ),
        ({"on": ["finished"], "command": ["x"], "then": 1}, "unknown key 'then'"),
        ("run", "must be a table"),
    ],
)
def test_what_can_not_be_used_is_refused_by_its_place(table: Any, problem: str) -> None:
    good = {"on": ["finished"], "command": ["x"]}
    with pytest.raises(CliError, match=problem) as refused:
        read_hooks("config.toml", [good, table])
    told = f"{refused.value} {refused.value.hint}"
    assert "config.toml: hook 2" in told
    assert SECRET not in told


@pytest.mark.parametrize(
    "raw", ["x", {"on": []}, [{"on": ["finished"], "command": ["x"]}] * (MAX_HOOKS + 1)]
)
def test_hooks_are_a_bounded_list(raw: Any) -> None:
    with pytest.raises(CliError, match="hooks"):
        read_hooks("config.toml", raw)


def test_a_token_that_is_not_there_is_said_by_its_variable() -> None:
    table = {"on": ["finished"], "url": "http://h", "token_env": "TOKEN"}
    settings = read_hooks("config.toml", [table])
    with pytest.raises(CliError, match="hook 1: the variable TOKEN is not set"):
        make_hooks(settings, {"TOKEN": ""})


def test_a_command_of_the_file_is_told_how_a_run_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    heard = tmp_path / "heard"
    code = f"import sys; open({str(heard)!r}, 'a').write(sys.stdin.read() + chr(10))"
    file = tmp_path / "config.toml"
    file.write_text(
        f"[[hooks]]\non = ['run_end']\ncommand = [{sys.executable!r}, '-c', {code!r}]\n"
    )
    monkeypatch.setattr("greenroom.cli._main.default_config_file", lambda: file)
    monkeypatch.setenv("GREENROOM_STATE", str(tmp_path / "state"))
    for name in ("GREENROOM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    assert main(["run", "hello", "--yes", "--cwd", str(tmp_path)]) == ExitCode.OK
    assert '"type":"run_end"' in heard.read_text()
    assert '"outcome":"completed"' in heard.read_text()
