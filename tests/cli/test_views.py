"""What requests carried is listed, shown and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.rehearsal import Probe, open_stage, replies

from greenroom.cli._main import main
from greenroom.testing import Call, Halt, Say, Use


@pytest.fixture
async def session(tmp_path: Path) -> str:
    ask = [Call("probe", {"n": 1}), Use(300, 5), Halt("tool_use")]
    async with open_stage(
        tmp_path, replies(ask, [Say("done"), Halt()]), Probe(), system_prompt="be brief"
    ) as stage:
        await stage.session.prompt("a\x1b[31m and b")
    return stage.session.id


def told(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str) -> str:
    assert main(["inspect", *arguments, "--state", str(tmp_path / "state")]) == 0
    return capsys.readouterr().out


def ids(capsys: pytest.CaptureFixture[str], tmp_path: Path, session: str) -> list[str]:
    lines = told(capsys, tmp_path, session, "--views").splitlines()
    return [line.split()[0] for line in lines]


async def test_each_request_is_a_line(
    session: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = told(capsys, tmp_path, session, "--views").splitlines()
    assert "request 1  chat       2 messages" in first
    assert "request 2  tool_loop  4 messages" in second
    assert "from the provider's count" in second
    assert "begins with all 2 of the request before" in second


async def test_a_view_tells_what_is_in_it_and_what_is_not(
    session: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = ids(capsys, tmp_path, session)
    shown = told(capsys, tmp_path, first)
    assert "in   system_prompt: 1 messages" in shown
    assert "in   new_user_input: 1 messages, places 1" in shown
    assert "out  pending_not_context_history: 1 of places 2" in shown
    assert "window unknown" in shown
    (row,) = told(capsys, tmp_path, first, "--json").splitlines()
    assert json.loads(row)["viewId"] == first


async def test_two_views_are_compared_part_by_part(
    session: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = ids(capsys, tmp_path, session)
    lines = told(capsys, tmp_path, second, "--diff", first).splitlines()
    assert "-   out  pending_not_context_history: 1 of places 2" in lines
    assert any(line.startswith("+   in   tool_loop_message: 2") for line in lines)
    assert not any("system_prompt" in line for line in lines)
    assert told(capsys, tmp_path, first, "--diff", first) == ""
    row = json.loads(told(capsys, tmp_path, second, "--diff", first, "--json"))
    assert row.keys() == {"removed", "added"}


@pytest.mark.parametrize("arguments", [["view_none"], ["--diff", "view_none"]])
async def test_what_is_no_view_is_said_to_be_none(
    session: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    target = [] if arguments[0] != "--diff" else [session]
    state = str(tmp_path / "state")
    assert main(["inspect", *target, *arguments, "--state", state]) != 0
    assert "--views" in capsys.readouterr().err
