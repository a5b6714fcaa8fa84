"""Every benchmark still runs. Shapes only: no time is judged here."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path

import pytest
from run import CASES, main
from runner import Case, as_json, as_table, measure

pytestmark = pytest.mark.slow  # starts engines, writes to disk, imports baselines


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_measures_every_side_and_judges_every_claim(case: Case) -> None:
    if not case.is_possible:
        pytest.skip(f"{case.needs} is not installed")

    result = measure(case, 1, smoke=True)

    assert result.figures.keys() == case.sides.keys()
    figures = [s for side in result.figures.values() for s in side.values()]
    assert all(isfinite(one.median) and one.median >= 0 for one in figures)
    assert [verdict.claim for verdict in result.verdicts] == list(case.claims)
    assert all(isfinite(verdict.spread.median) for verdict in result.verdicts)
    assert as_table(result).startswith(f"{case.name}: ")
    written = json.loads(json.dumps(as_json([result], 1, {})))
    assert written["cases"].keys() == {case.name}


def test_names_of_cases_are_unique() -> None:
    names = [case.name for case in CASES]

    assert sorted(set(names)) == sorted(names)


def test_the_command_measures_what_was_named_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"

    assert main(["--smoke", "--only", "tell", "--json", str(file)]) == 0

    written = json.loads(file.read_text())
    assert written["cases"].keys() == {"tell"}
    assert written["machine"].keys() == {"processor", "system", "python", "commit"}
    assert capsys.readouterr().out.startswith("tell: ")


def test_a_case_whose_need_is_missing_is_skipped_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("runner.find_spec", lambda name: None)

    assert main(["--smoke", "--only", "ask-hosted-to-hosted"]) == 0

    assert "skipped, needs pykka" in capsys.readouterr().out
