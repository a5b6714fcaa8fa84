"""The page of known failure modes names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs/failure-modes.md"


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text(encoding="utf-8")))
    assert len(named) > 20
    known: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        known |= set(re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8")))
    assert named - known == set()
