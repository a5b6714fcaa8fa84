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
PLACES: Final = ("actors", "protocol", "storage", "docs", "README.md")
"""Code, and what is told of it: the docs describe only what is in force."""


@attrs.frozen
class Retired:
    """A name that only *edges* may hold."""

    name: str
    edges: tuple[str, ...] = ()


LEGACY: Final = ("storage/greenroom/storage/legacy/", "docs/storage.md")
GATEWAY: Final = "protocol/greenroom/protocol/gateway/"

RETIRED: Final = (
    Retired("deepchat", (*LEGACY, GATEWAY)),
    Retired("agentType", (*LEGACY, GATEWAY)),
    Retired("agent_type", (*LEGACY, GATEWAY)),
    Retired("new_sessions", LEGACY),
    Retired("inheritsFrom", LEGACY),
    Retired("presenter"),
    Retired("ONE_SHOT_RETRIES"),
)


# Part of a longer name counts too.
ANY: Final = re.compile(
    "|".join(re.escape(each.name) for each in RETIRED), re.IGNORECASE
)


def violations(root: Path) -> Iterator[str]:
    """Every line of code or docs below *root* that holds a retired name."""
    for place in map(root.joinpath, PLACES):
        for path in sorted([place] if place.is_file() else place.rglob("*")):
            if path.suffix not in (".py", ".md"):
                continue
            where = path.relative_to(root).as_posix()
            text = path.read_text()
            if ANY.search(text):
                yield from _found(where, text)


def _found(where: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        for retired in RETIRED:
            # An edge is a folder, or one page.
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


@pytest.mark.contract("EVL-18")
@pytest.mark.parametrize("page", ["README.md", "docs/guides/old.md"])
def test_a_page_that_tells_of_a_retired_name_is_found(tmp_path: Path, page: str):
    (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / page).write_text("Set `inheritsFrom`.\n")
    assert list(violations(tmp_path)) == [f"{page}:1: inheritsFrom"]


def test_an_edge_may_read_what_it_translates(tmp_path: Path):
    folder = tmp_path / LEGACY[0]
    folder.mkdir(parents=True)
    (folder / "_agents.py").write_text('KIND = row["agent_type"]\n')
    assert list(violations(tmp_path)) == []
