"""Measure greenroom against plain trio, SQLite and pykka.

    python benchmarks/run.py [--only NAME ...] [--rounds N] [--smoke] [--json FILE]

Prints a table for people. Exits 1 when a target is missed, except in smoke mode, whose
sizes are too small for any judgement.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import bench_cancel
import bench_estimate
import bench_gateway
import bench_hosted
import bench_layout
import bench_loaded
import bench_mailbox
import bench_memory
import bench_portal
import bench_sessions
import bench_spawn
import bench_store
import bench_turn
import bench_view
import bench_writer
from runner import Case, Result, as_json, as_table, machine, measure

CASES: Final[tuple[Case, ...]] = (
    *bench_mailbox.CASES,
    *bench_hosted.CASES,
    *bench_spawn.CASES,
    *bench_memory.CASES,
    *bench_cancel.CASES,
    *bench_writer.CASES,
    *bench_store.CASES,
    *bench_sessions.CASES,
    *bench_loaded.CASES,
    *bench_layout.CASES,
    *bench_turn.CASES,
    *bench_view.CASES,
    *bench_estimate.CASES,
    *bench_portal.CASES,
    *bench_gateway.CASES,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [case.name for case in CASES]
    parser.add_argument("--only", action="append", metavar="NAME", choices=names)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, one round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures there")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    rounds = 1 if options.smoke else options.rounds
    where = machine()  # now, because the checkout may move on meanwhile
    results: list[Result] = []
    for case in CASES:
        if options.only and case.name not in options.only:
            continue
        if not case.is_possible:
            print(f"{case.name}: skipped, needs {case.needs}: pip install {case.needs}")
            continue
        results.append(measure(case, rounds, smoke=options.smoke))
        print(as_table(results[-1]), flush=True)
    if options.json is not None:
        figures = as_json(results, rounds, where)
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if options.smoke else _status(results)


def _status(results: Sequence[Result]) -> int:
    missed = [v for result in results for v in result.verdicts if v.met is False]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
