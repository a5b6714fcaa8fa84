"""``greenroom attach`` and ``run --remote`` as processes, with a gateway that dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

GREENROOM = [sys.executable, "-P", "-m", "greenroom"]
SECRET = "0123456789abcdef" * 2
PATIENCE = 30.0


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GREENROOM")}
    kept.pop("OPENAI_API_KEY", None)
    return kept | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder)} | more


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextmanager
def serving(folder: Path, port: int, *more: str, **env: str) -> Iterator[Any]:
    command = [*GREENROOM, "serve", "--json", "--port", str(port), *more]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(folder, **env),
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def greenroom(folder: Path, *arguments: str, said: str = "", **env: str) -> Any:
    return subprocess.run(
        [*GREENROOM, *arguments],
        cwd=folder,
        env=environment(folder, **env),
        input=said,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_killed_gateway_is_come_back_to_without_a_gap(tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    state = ("--state", str(tmp_path / "state"))
    with serving(tmp_path, port, *state) as server:
        first = greenroom(tmp_path, "run", "--remote", url, "one", "--json")
        assert first.returncode == 0, first.stderr
        session = lines(first.stdout)[0]["sessionId"]
        watching = subprocess.Popen(
            [*GREENROOM, "attach", url, session, "--json"],
            env=environment(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert watching.stdout is not None
        begin = json.loads(watching.stdout.readline())
        server.kill()
        server.wait()
    try:
        with serving(tmp_path, port, *state):
            again = ("--session", session, "--json")
            second = greenroom(tmp_path, "run", "--remote", url, "two", *again)
            assert second.returncode == 0, second.stderr
            told: list[dict[str, Any]] = []
            while not told or told[-1]["type"] != "stream/completed":
                told.append(json.loads(watching.stdout.readline()))
            watching.send_signal(signal.SIGTERM)
            _, said = watching.communicate(timeout=PATIENCE)
    finally:
        watching.kill()
        watching.wait()
    assert begin["type"] == "attached"
    durable = [(e["seq"], e["type"]) for e in told if "seq" in e]
    known = [(e["seq"], e["type"]) for e in lines(second.stdout) if "seq" in e]
    assert [pair for pair in durable if pair[0] >= known[0][0]] == known
    assert durable[0][0] > begin["seq"]
    assert sorted(durable) == sorted(set(durable))
    assert "connected again" in said
    assert watching.returncode == 130


def test_lines_of_a_script_have_their_turns_in_order(tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    with serving(tmp_path, port, "--state", "state"):
        empty = greenroom(tmp_path, "attach", url)
        assert (empty.returncode, "no session" in empty.stderr) == (2, True)
        assert greenroom(tmp_path, "run", "--remote", url, "one").returncode == 0
        done = greenroom(tmp_path, "attach", url, said="two\n//three\n")
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stdout.splitlines() if line.startswith("user: ")]
        assert said == ["user: one", "user: two", "user: /three"]
        wrong = greenroom(tmp_path, "attach", url, said="/nonsense\nfour\n")
        assert (wrong.returncode, "/help" in wrong.stdout) == (1, True)


def test_a_question_that_nobody_can_answer_ends_a_script(tmp_path):
    port = free_port()
    with serving(tmp_path, port, "--demo"):
        url = f"http://127.0.0.1:{port}/"
        prompt = ("run", "--remote", url, "go")
        assert greenroom(tmp_path, *prompt, "--yes").returncode == 4


def test_a_token_is_needed_and_quoted_nowhere(tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    file = tmp_path / "token"
    file.write_text(f"# mine\n{SECRET} read,write\n")
    file.chmod(0o600)
    with serving(tmp_path, port, "--state", "state", GREENROOM_TOKEN=SECRET):
        prompt = ("run", "--remote", url, "hello")
        without = greenroom(tmp_path, *prompt)
        assert (without.returncode, "GREENROOM_TOKEN" in without.stderr) == (6, True)
        assert greenroom(tmp_path, *prompt, GREENROOM_TOKEN=SECRET).returncode == 0
        given = greenroom(tmp_path, *prompt, "--token-file", str(file))
        assert given.returncode == 0, given.stderr
        file.chmod(0o644)
        shown = greenroom(tmp_path, *prompt, "--token-file", str(file))
        assert (shown.returncode, SECRET in shown.stderr) == (2, False)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["attach", "http://127.0.0.1:1/"], 6, "greenroom serve"),
        (["run", "--remote", "http://127.0.0.1:1/", "x"], 6, "greenroom serve"),
        (["attach", "http://u:p@host/"], 2, "token"),
        (["attach", "session", "http://127.0.0.1:1/"], 2, "in this order"),
        (["run", "--remote", "http://h/", "--base-url", "http://m", "x"], 2, "gateway"),
    ],
)
def test_what_can_not_be_reached_is_said_in_a_sentence(
    tmp_path, arguments, status, says
):
    done = greenroom(tmp_path, *arguments)
    assert (done.returncode, says in done.stderr) == (status, True), done.stderr
    assert "Traceback" not in done.stderr
