"""What the guide to evaluations shows works as it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from greenroom.cli import main
from greenroom.testing import (
    Expectation,
    Scenario,
    ScriptedTool,
    evaluate,
    load_scenarios,
)

GUIDE = Path(__file__).parents[2].joinpath("docs", "guides", "evals.md").read_text()


def example(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.+?)```", GUIDE, re.DOTALL)
    return found


async def test_the_scenario_of_the_guide_passes(tmp_path: Path):
    file = tmp_path / "scenarios.toml"
    file.write_text(example("toml"))
    (result,) = (await evaluate(load_scenarios(file))).scenarios
    assert result.failures == ()
    assert result.permission_requests == 1


async def test_the_test_of_the_guide_passes(tmp_path: Path):
    names: dict[str, Any] = {}
    exec(compile(example("python"), "evals.md", "exec"), names)
    await names["test_it_looks_before_it_answers"](tmp_path)


@pytest.mark.parametrize("kind", [Scenario, Expectation, ScriptedTool])
def test_the_guide_names_every_key(kind: type):
    missing = [name for name in kind.__annotations__ if f"`{name}`" not in GUIDE]
    assert missing == []


def test_the_commands_of_the_guide_are_understood(
    capsys: pytest.CaptureFixture[str],
):
    assert main(["eval", "--only", "cancellation"]) == 0
    assert "1 of 1 scenario passed" in capsys.readouterr().out
