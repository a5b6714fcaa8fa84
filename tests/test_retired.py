"""Names that were given up stay given up, but for the edges that still read them.

A targeted guard: an exact list, and nothing that guesses. A name is added here when it
is retired, with the paths that may go on knowing it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import pytest

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("actors", "protocol", "storage")


@attrs.frozen
class Retired:
    """A name that only *edges* may hold."""

    name: str
    edges: tuple[str, ...] = ()


LEGACY: Final = "storage/greenroom/storage/legacy/"
GATEWAY: Final = "protocol/greenroom/protocol/gateway/"

RETIRED: Final = (
    Retired("deepchat", (LEGACY, GATEWAY)),
    Retired("agentType", (LEGACY, GATEWAY)),
    Retired("agent_type", (LEGACY, GATEWAY)),
    Retired("new_sessions", (LEGACY,)),
    Retired("inheritsFrom", (LEGACY,)),
    Retired("presenter"),
    Retired("ONE_SHOT_RETRIES"),
)


# Part of a longer name counts too.
ANY: Final = re.compile(
    "|".join(re.escape(each.name) for each in RETIRED), re.IGNORECASE
)


def violations(root: Path) -> Iterator[str]:
    """Every line of the packages below *root* that holds a retired name."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            where = path.relative_to(root).as_posix()
            text = path.read_text()
            if ANY.search(text):
                yield from _found(where, text)


def _found(where: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        for retired in RETIRED:
            # An edge is a folder.
            held = retired.name.lower() in line.lower()
            if held and not where.startswith(retired.edges or ("-",)):
                yield f"{where}:{number}: {retired.name}"


@pytest.mark.contract("EVL-18")
def test_no_retired_name_is_used():
    assert list(violations(ROOT)) == []


@pytest.mark.contract("EVL-18")
@pytest.mark.parametrize("retired", RETIRED, ids=lambda each: each.name)
def test_a_planted_name_is_found(tmp_path: Path, retired: Retired):
    folder = tmp_path / "actors" / "greenroom" / "actors"
    folder.mkdir(parents=True)
    (folder / "good.py").write_text("from greenroom.protocol import Fact\n")
    assert list(violations(tmp_path)) == []

    (folder / "bad.py").write_text(f"import x\n\n{retired.name} = x\n")
    found = list(violations(tmp_path))
    assert f"actors/greenroom/actors/bad.py:3: {retired.name}" in found


def test_an_edge_may_read_what_it_translates(tmp_path: Path):
    folder = tmp_path / LEGACY
    folder.mkdir(parents=True)
    (folder / "_agents.py").write_text('KIND = row["agent_type"]\n')
    assert list(violations(tmp_path)) == []
