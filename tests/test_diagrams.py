from __future__ import annotations

import importlib.util
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "docs" / "diagrams.py"


def test_the_committed_diagram_is_what_the_table_says():
    spec = importlib.util.spec_from_file_location("diagrams", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    diagrams = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(diagrams)
    page = diagrams.PAGE.read_text()
    assert diagrams.with_diagram(page, diagrams.run_diagram()) == page
    assert "ended --> [*]" in page
