"""The command: what it prints, and how it exits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from greenroom.cli import main
from greenroom.testing import STANDARD_SCENARIOS

GOOD = {
    "id": "good",
    "script": [[{"type": "say", "text": "hello"}, {"type": "stop"}]],
    "expect": {"status": "completed"},
}
BAD = GOOD | {"id": "bad", "expect": {"status": "completed", "text": ["\x1b[2J"]}}


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("NO_COLOR", raising=False)


def file_of(folder: Path, *scenarios: dict[str, Any]) -> str:
    file = folder / "scenarios.json"
    file.write_text(json.dumps({"scenarios": scenarios}))
    return str(file)


def test_the_table_has_every_standard_scenario_in_order(
    capsys: pytest.CaptureFixture[str],
):
    assert main(["eval"]) == 0
    _, *lines, summary = capsys.readouterr().out.splitlines()
    shown = [line.split() for line in lines]
    assert [words[:2] for words in shown] == [["ok", s.id] for s in STANDARD_SCENARIOS]
    assert shown[4][2:] == ["completed/complete", "3/4", "2/3"]
    assert shown[6][2:] == ["paused/-", "1/1", "0/0"]
    assert summary == (
        "15 of 15 scenarios passed · 151 of 152 rounds · 138 of 139 tool calls"
        " · 274 tokens"
    )
    assert [line for line in lines if len(line) > 80] == []


def test_a_scenario_that_fails_says_why_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["eval", file_of(tmp_path, GOOD, BAD)]) == 1
    out = capsys.readouterr().out
    assert "ok   good" in out
    assert "FAIL bad" in out
    assert "text: expected '\\x1b[2J' in 'hello'" in out
    assert "1 of 2 scenarios passed" in out
    assert "\x1b" not in out


def test_json_is_one_report_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["eval", file_of(tmp_path, GOOD, BAD), "--json"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    report = json.loads(line)
    assert report["schemaVersion"] == 1
    assert [each["passed"] for each in report["scenarios"]] == [True, False]
    assert report["aggregate"]["passRate"] == 0.5
    good = report["scenarios"][0]
    assert good["persisted"]["statuses"] == ["none", "pending", "sent"]
    assert good["usage"] is None


def test_the_guide_s_keys_are_those_of_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    guide = Path(__file__).parents[2].joinpath("docs", "guides", "evals.md").read_text()
    main(["eval", file_of(tmp_path, GOOD), "--json"])
    report = json.loads(capsys.readouterr().out)
    told = set(re.findall(r"`(\w+)`", guide.split("## The report")[1]))
    assert {*report, *report["scenarios"][0], *report["aggregate"]} <= told


def test_only_runs_what_is_named(capsys: pytest.CaptureFixture[str]):
    chosen = ["--only", "max-tokens", "--only", "direct-completion"]
    assert main(["eval", "--json", *chosen]) == 0
    report = json.loads(capsys.readouterr().out)
    ids = [each["id"] for each in report["scenarios"]]
    assert ids == ["direct-completion", "max-tokens"]


def test_colour_is_used_where_it_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    main(["eval", file_of(tmp_path, GOOD, BAD), "--color", "always"])
    out = capsys.readouterr().out
    assert "\x1b[32mok  \x1b[0m good" in out
    assert "\x1b[31mFAIL\x1b[0m bad" in out


def test_a_script_that_waits_or_hangs_costs_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    waits = GOOD | {"id": "waits"}
    waits["script"] = [[{"type": "pause", "seconds": 500}, *GOOD["script"][0]]]
    hangs = GOOD | {"id": "hangs", "script": [[{"type": "hang"}]]}
    assert main(["eval", file_of(tmp_path, waits, hangs)]) == 1
    out = capsys.readouterr().out
    assert "ok   waits" in out
    assert "the turn did not end within 600 s" in out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere.toml"], "nowhere.toml: can't be read: No such file"),
        (["--only", "nothing\x1b[2J"], "there is no scenario 'nothing␛[2J'"),
    ],
)
def test_what_can_t_be_used_exits_with_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["eval", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err


def test_a_file_that_is_wrong_exits_with_2_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    wrong = GOOD | {"expect": {"status": "completed", "round": 1}}
    assert main(["eval", file_of(tmp_path, wrong)]) == 2
    said = capsys.readouterr().err
    assert "unknown field `round` - at `$.scenarios[0].expect`" in said
    assert "docs/guides/evals.md" in said
