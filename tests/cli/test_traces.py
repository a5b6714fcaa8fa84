"""What was sent to the provider is shown, and shown harmless."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from kit.rehearsal import open_stage, replies

from greenroom.cli._main import main
from greenroom.protocol import SessionId
from greenroom.storage import open_reader
from greenroom.testing import Fail, Halt, Say


@pytest.fixture
async def session(tmp_path: Path) -> str:
    script = replies([Fail("no", status=401)], [Say("done"), Halt()])
    async with open_stage(tmp_path, script) as stage:
        await stage.session.prompt("a\x1b[31m and b")
        await stage.session.prompt("more")
    return stage.session.id


def told(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str) -> str:
    state = str(tmp_path / "state")
    assert main(["inspect", *arguments, "--traces", "--state", state]) == 0
    return capsys.readouterr().out


async def test_each_attempt_of_a_session_is_shown(
    session: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, sent, second, _ = told(capsys, tmp_path, session).splitlines()
    assert "round 1, request 1, attempt 1  rehearsal  default" in first
    assert "round 1, request 1, attempt 1" in second
    assert sent.startswith("    {")
    assert "\x1b" not in sent


async def test_as_json_each_is_whole_and_of_one_run_if_wanted(
    session: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        json.loads(line)
        for line in told(capsys, tmp_path, session, "--json").splitlines()
    ]
    assert [row["physicalAttempt"] for row in rows] == [1, 1]
    body = json.loads(rows[0]["payload"])["body"]
    assert body["messages"][0]["parts"][0]["text"] == "a\x1b[31m and b"
    (row,) = told(capsys, tmp_path, rows[1]["runId"], "--json").splitlines()
    assert json.loads(row) == rows[1]


async def test_a_message_is_followed_through_its_hops_and_has_its_traces(
    session: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ["--state", str(tmp_path / "state")]
    with closing(open_reader(tmp_path / "state")) as reader:
        *_, answer = reader.messages(SessionId(session))
    assert main(["inspect", answer.id, "--json", *state]) == 0
    hops = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {hop["runId"] for hop in hops} == {answer.metadata.run_id}
    assert {"run", "request", "attempt", "end"} <= {hop["hop"] for hop in hops}
    (row,) = told(capsys, tmp_path, answer.id, "--json").splitlines()
    assert json.loads(row)["messageId"] == answer.id
    assert main(["inspect", answer.id, *state]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"run {answer.metadata.run_id}  session {session}"
    assert len(lines) == len(hops)
    assert main(["inspect", "nobody", *state]) != 0
