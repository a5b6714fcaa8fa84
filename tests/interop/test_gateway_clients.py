"""``greenroom serve`` under WebSocket clients that were written without it in mind."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kit.acp_process import PATIENCE, environment, scripted

pytestmark = pytest.mark.interop

SECRET = "0123456789abcdef" * 2
SCRIPT = """[
    [Say("I look. "), Call("list", {"path": "."}),
     Call("write", {"path": "new.txt", "content": "hi"}), Halt("tool_use")],
    [Say("I wrote."), Halt()],
]"""


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@contextmanager
def serving(work: Path, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gateway of its own, and where its ``/acp`` is."""
    state = work.parent / "state"
    serve = ("serve", "--port", "0", "--json", "--state", str(state))
    with subprocess.Popen(
        [*scripted(SCRIPT), *serve],
        cwd=work,
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            info = json.loads(process.stdout.readline())
            yield process, f"ws://127.0.0.1:{info['port']}/acp"
        finally:
            process.kill()


def started(python: str, client: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [python, str(Path(__file__).with_name(client)), *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_websockets_prompts_answers_and_resumes_and_is_told_why_it_ends(
    work, websockets_python
):
    with (
        serving(work, GREENROOM_TOKEN=SECRET) as (server, url),
        started(websockets_python, "gateway_client.py", url, SECRET) as client,
    ):
        assert client.stdout is not None
        told: dict[str, Any] = json.loads(client.stdout.readline() or "{}")
        if client.stdout.readline() == "connected\n":
            server.send_signal(signal.SIGTERM)
        out, err = client.communicate(timeout=PATIENCE)
        assert (out, err) == ("1001\n", "")
        assert server.wait(PATIENCE) == 0
    assert told["connection"]
    assert (told["version"], told["client"]) == (1, "phone")
    assert told["text"].endswith("I wrote.")
    assert (work / "new.txt").read_text() == "hi"
    # What was told live is what is told again, and there is no snapshot with a cursor.
    assert told["live"]
    assert told["replayed"] == told["live"]
    assert told["snapshot"] is False
    assert told["status"] == 401
    assert told["codes"] == [4401, 1009]


def test_the_protocol_s_python_sdk_drives_it_over_its_own_websocket(
    work, sdk_websocket_python
):
    with (
        serving(work) as (_, url),
        started(
            sdk_websocket_python, "sdk_gateway_client.py", str(work), url
        ) as client,
    ):
        out, err = client.communicate(timeout=PATIENCE)
        assert client.returncode == 0, err
    told = json.loads(out)
    assert (told["version"], told["agent"]) == (1, "greenroom")
    assert told["stop"] == "end_turn"
    assert told["asked"] == ["write new.txt"]
    assert told["text"] == "I look. I wrote."
    assert {"tool_call", "tool_call_update", "agent_message_chunk"} <= set(
        told["updates"]
    )
    assert (work / "new.txt").read_text() == "hi"
