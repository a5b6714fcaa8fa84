"""The suites that greenroom can't be without are there, and pytest finds them.

A suite that moves is named anew here; one that is gone is not found by chance, but by
this. Suites of features that are still to come are added with the feature.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]

REQUIRED: Final[Mapping[str, str]] = {
    "the tape": "tests/storage/test_tape.py",
    "the strict journal": "tests/storage/test_journal.py",
    "both stores keep one contract": "tests/storage/test_conformance.py",
    "recovery": "tests/storage/test_recovery.py",
    "a process killed at each step of the journal": "tests/crash/test_kill.py",
    "a disk that fails at each operation": "tests/crash/test_disk_sweep.py",
    "which tools a run sees": "tests/actors/tools/test_registry.py",
    "a cancel at each step of a run": "tests/actors/sessions/test_cancel_sweep.py",
    "the laws of every session": "tests/laws/test_laws.py",
    "who may import what": "tests/test_layers.py",
    "the standard scenarios": "tests/evals/test_standard.py",
    "agents that stand alone": "tests/actors/agents/test_migration.py",
    "agents as values": "tests/protocol/test_agent_config.py",
    "who runs whose sessions": "tests/actors/agents/test_backends.py",
    "what a tape keeps of subagents": "tests/storage/test_links.py",
    "who uses which Skill": "tests/actors/skills/test_using_skills.py",
    "retired names": "tests/test_retired.py",
}


def collected(root: Path, *paths: str) -> Counter[str]:
    """How many tests pytest finds in each file."""
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
    done = subprocess.run(
        [*command, "--collect-only", "-qq", "-m", "", *paths],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
    )
    found: Counter[str] = Counter()
    for line in done.stdout.splitlines():
        path, colon, count = line.rpartition(": ")
        if colon and count.isdigit():
            found[path] += int(count)
    return found


def missing(root: Path, required: Mapping[str, str]) -> list[str]:
    """The subjects whose suite is not there, or has no test that is found."""
    there = {name: path for name, path in required.items() if (root / path).is_file()}
    found = collected(root, *there.values()) if there else Counter[str]()
    return [name for name, path in required.items() if not found[path]]


@pytest.mark.contract("EVL-18")
@pytest.mark.slow  # waits for another process
def test_every_required_suite_is_collected():
    assert missing(ROOT, REQUIRED) == []


@pytest.mark.contract("EVL-18")
@pytest.mark.slow  # waits for another process
def test_a_suite_that_is_gone_or_holds_no_test_is_missed(tmp_path: Path):
    (tmp_path / "test_full.py").write_text("def test_something(): ...\n")
    (tmp_path / "test_empty.py").write_text("def something(): ...\n")
    required = {
        "full": "test_full.py",
        "empty": "test_empty.py",
        "gone": "test_gone.py",
    }
    assert missing(tmp_path, required) == ["empty", "gone"]
