"""The example of the guide to embedding runs, and prints what it should."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from greenroom.testing import RehearsalProvider

SNIPPET = Path(__file__).parents[3] / "docs" / "snippets" / "embed.py"


async def test_the_embedding_example_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = runpy.run_path(str(SNIPPET))
    await names["main"](RehearsalProvider(names["SCRIPT"]), tmp_path)

    shown = capsys.readouterr().out
    assert shown.startswith("I tell both.\n  may it send 'dinner' to ada?\n")
    assert shown.count("may it") == 2
    assert shown.endswith("\ncompleted: Ada knows; I may not write to Bob.\n")
