"""The benchmark of the store runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench_store.py"


@pytest.mark.slow
def test_the_benchmark_measures_everything_in_smoke_mode() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--smoke"],
        capture_output=True,
        check=True,
        text=True,
    )
    figures = json.loads(done.stdout)
    assert set(figures["strict"]) == {
        "one commit each, inline",
        "one thread hop each",
        "writer",
    }
    assert all(ratio > 0 for ratio in figures["ratios"].values())
    assert figures["reads"]["indexed_per_s"] > 0
