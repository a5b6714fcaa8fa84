from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from greenroom.cli import main
from greenroom.cli._exit import CliError, ExitCode, exit_code_for
from greenroom.protocol import DiskFullError, InteractionError

SECRET = "sk-very-secret-0123456789"


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment in which nothing is configured but one key."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "GREENROOM_API_KEY": SECRET,
    }


def greenroom(
    *arguments: str, env: dict[str, str], encoding: str = "utf-8"
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "greenroom", *arguments],
        env=env | {"PYTHONIOENCODING": encoding},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"greenroom {version('greenroom')}\n"


def test_without_a_command_the_usage_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("usage: greenroom")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CliError("x"), ExitCode.USAGE),
        (CliError("x", exit_code=ExitCode.SESSION_HELD), ExitCode.SESSION_HELD),
        (DiskFullError("x"), ExitCode.STATE),
        (InteractionError("unknown_interaction", "i", "x"), ExitCode.RUN_FAILED),
    ],
)
def test_each_kind_of_error_has_its_status(error: CliError, code: ExitCode) -> None:
    assert exit_code_for(error) == code


def test_config_prints_each_value_and_its_origin(home: dict[str, str]) -> None:
    done = greenroom("config", "--model", "small", env=home)

    assert (done.returncode, done.stderr) == (0, b"")
    lines = [" ".join(line.split()) for line in done.stdout.decode().splitlines()]
    assert "model small (flag --model)" in lines
    assert "base_url - (default)" in lines
    assert "api_key set (environment GREENROOM_API_KEY)" in lines
    file = Path(home["XDG_CONFIG_HOME"], "greenroom", "config.toml")
    assert f"config_file {file} (not there)" in lines
    assert SECRET not in done.stdout.decode()


def test_config_as_json_is_one_object(home: dict[str, str]) -> None:
    done = greenroom("config", "--json", env=home | {"GREENROOM_STATE": "/x\u202e"})

    described = json.loads(done.stdout)
    assert described["state"] == {
        "value": "/x\u202e",
        "origin": "environment GREENROOM_STATE",
    }
    assert "\u202e" not in done.stdout.decode()
    assert described["color"] == {"value": "auto", "origin": "default"}


def test_a_wrong_file_ends_the_command_with_a_sentence_and_a_hint(
    home: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "config" / "greenroom"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('"mo\\u001bdel" = "x"')

    done = greenroom("config", env=home)

    assert done.returncode == ExitCode.USAGE
    assert done.stdout == b""
    problem, hint = done.stderr.decode().splitlines()
    assert problem.startswith("greenroom: ")
    assert "config.toml: unknown key 'mo" in problem
    assert hint.startswith("  known keys: state, model,")


def test_a_terminal_that_knows_no_unicode_gets_question_marks(
    home: dict[str, str],
) -> None:
    done = greenroom("config", "--model", "größe", env=home, encoding="ascii")

    assert done.returncode == 0
    assert b"gr??e" in done.stdout


def test_a_reader_that_went_away_is_no_traceback(home: dict[str, str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "greenroom", "config"],
        env=home,
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(writing)

    assert done.returncode == ExitCode.RUN_FAILED
    assert done.stderr == b""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_works_where_a_standard_stream_is_closed(home, closed):
    command = f"exec {sys.executable} -P -m greenroom config {closed}"
    done = subprocess.run(
        ["/bin/sh", "-c", command], env=home, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (ExitCode.OK, b"")
    assert (b"api_key_env" in done.stdout) == (">&-" not in closed.split())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", [["config"], ["eval"]])
def test_output_that_there_is_no_room_for_is_told_in_a_sentence(home, words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "greenroom", *words],
            env=home,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            cwd=home["HOME"],
        )
    assert done.returncode == ExitCode.RUN_FAILED
    assert "greenroom: there is no room for the output\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
