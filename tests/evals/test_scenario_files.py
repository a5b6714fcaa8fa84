"""Files of scenarios, as anybody may write them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from greenroom.testing import STANDARD_SCENARIOS, ScenarioError, load_scenarios
from greenroom.testing._evals_scenario import MAX_FILE_BYTES, MAX_SCENARIOS

GOOD: dict[str, Any] = {
    "id": "good",
    "script": [[{"type": "say", "text": "hello"}, {"type": "stop"}]],
    "expect": {"status": "completed"},
}


def write(folder: Path, content: Any, name: str = "scenarios.json") -> Path:
    file = folder / name
    if not isinstance(content, bytes):
        content = msgspec.json.encode(content)
    file.write_bytes(content)
    return file


def test_the_standard_scenarios_survive_a_file(tmp_path: Path):
    file = write(tmp_path, {"scenarios": STANDARD_SCENARIOS})
    assert load_scenarios(file) == STANDARD_SCENARIOS


def test_toml_and_json_say_the_same(tmp_path: Path):
    toml = b"""
        [[scenarios]]
        id = "good"
        script = [[{ type = "say", text = "hello" }, { type = "stop" }]]
        expect.status = "completed"
    """
    as_toml = load_scenarios(write(tmp_path, toml, "scenarios.TOML"))
    assert as_toml == load_scenarios(write(tmp_path, {"scenarios": [GOOD]}))


def changed(**changes: Any) -> dict[str, Any]:
    return {"scenarios": [GOOD | changes]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "truncated"),
        (b"\xff", "malformed"),
        (b"[" * 100_000, "Expected `object`"),
        (b'{"scenarios":' + b"[" * 100_000, "Expected `object`"),
        ({}, "missing required field `scenarios`"),
        ({"scenarios": []}, "length >= 1"),
        ({"scenarios": [GOOD], "more": 1}, "unknown field `more`"),
        ({"scenarios": [GOOD, GOOD]}, "several scenarios have the id 'good'"),
        ({"scenarios": [GOOD] * (MAX_SCENARIOS + 1)}, "length <= 1000"),
        (changed(id=""), r"\$.scenarios\[0\].id"),
        (changed(id="../up"), r"\$.scenarios\[0\].id"),
        (changed(id="a\n"), r"\$.scenarios\[0\].id"),
        (changed(expects={}), "unknown field `expects`"),
        (changed(expect={}), "missing required field `status`"),
        (changed(expect={"status": "done"}), "Invalid enum value 'done'"),
        (changed(expect={"status": "error", "round": 1}), "unknown field `round`"),
        (changed(expect={"status": "error", "rounds": -1}), "`int` >= 0"),
        (changed(expect={"status": "error", "rounds": True}), "got `bool`"),
        (changed(expect={"status": "error", "text": [""]}), "length >= 1"),
        (changed(expect={"status": "error", "usage": "some"}), "usage"),
        (changed(script=[[{"type": "shout"}]]), "Invalid value 'shout'"),
        (changed(script=[[{"type": "stop", "why": 1}]]), "unknown field `why`"),
        (changed(script=[[]] * 1_001), "length <= 1000"),
        (changed(tools=[{"name": "a b"}]), r"tools\[0\].name"),
        (changed(tools=[{"name": "a"}] * 2), "several tools of scenario 'good'"),
        (changed(answers=[{"answer": "grant", "reason": ""}]), "unknown field"),
        (changed(budget={"rounds": 1}), "missing required field `tool_calls`"),
        (changed(max_rounds=0), "`int` >= 1"),
        (changed(stop_before_event=0), "`int` >= 1"),
        (changed(permission_mode="ask"), "Invalid enum value 'ask'"),
        (changed(system_prompt="x" * 100_001), "length <= 100000"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused(
    tmp_path: Path, content: Any, problem: str
):
    file = write(tmp_path, content)
    with pytest.raises(ScenarioError, match=problem) as caught:
        load_scenarios(file)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"scenarios = ", "is not valid TOML"),
        (b"\xff", "is not valid TOML"),
        (b"a = " + b"[" * 100_000, "is nested too deeply"),
        (b"a = 1", "unknown field `a`"),
    ],
)
def test_toml_that_is_not_as_it_should_be_is_refused(
    tmp_path: Path, content: bytes, problem: str
):
    with pytest.raises(ScenarioError, match=problem):
        load_scenarios(write(tmp_path, content, "scenarios.toml"))


def test_a_file_must_be_one_and_be_named_and_sized_as_one(tmp_path: Path):
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    large = write(tmp_path, b" " * (MAX_FILE_BYTES + 1), "large.json")
    refused = {
        tmp_path / "none.toml": "can't be read: No such file",
        tmp_path: "can't be read: Is a directory",
        pipe: "is not a regular file",
        large: "is larger than 4194304 bytes",
        write(tmp_path, b"{}", "scenarios.yaml"): r"must end in .toml or .json",
        Path("nul\0.toml"): "null",
    }
    for file, problem in refused.items():
        with pytest.raises(ScenarioError, match=problem):
            load_scenarios(file)
