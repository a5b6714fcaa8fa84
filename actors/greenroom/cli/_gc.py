"""``greenroom gc``: removing what may go from a state folder."""

from __future__ import annotations

import argparse
import os
import sys

from greenroom.actors.kernel import SystemClock
from greenroom.storage import Swept, sweep

from ._config import Config
from ._exit import ExitCode
from ._harmless import harmless, json_line


def gc_command(arguments: argparse.Namespace, config: Config) -> int:
    """Remove, or tell, what may go."""
    swept = sweep(
        config.state,
        older_than=arguments.older_than,
        archived=arguments.archived,
        dry_run=arguments.dry_run,
        node=f"greenroom gc (process {os.getpid()})",
        now=SystemClock().now(),
    )
    if arguments.json:
        sys.stdout.write(json_line(_values(swept, dry_run=arguments.dry_run)))
    else:
        _print(swept, would=arguments.dry_run)
    for problem in swept.problems:
        print(f"greenroom: {harmless(problem)}", file=sys.stderr)
    return ExitCode.RUN_FAILED if swept.problems else ExitCode.OK


def _values(swept: Swept, *, dry_run: bool) -> dict[str, object]:
    return {
        "traces": swept.traces,
        "archived": swept.archived,
        "unfinished": swept.unfinished,
        "files": [str(path) for path in swept.files],
        "fileBytes": swept.file_bytes,
        "problems": swept.problems,
        "logBytes": swept.log_bytes,
        "dryRun": dry_run,
    }


def _print(swept: Swept, *, would: bool) -> None:
    verb = "would remove" if would else "removed"
    print(f"{verb} {swept.traces} traces")
    for scope in swept.archived:
        print(f"{verb} archived session {harmless(scope)}")
    for scope in swept.unfinished:
        print(f"{verb} unfinished import {harmless(scope)}")
    for path in swept.files:
        print(f"{verb} {harmless(str(path))}")
    size = f"{swept.file_bytes / 1024:,.0f} KiB"
    print(f"{verb} {len(swept.files)} folders of tools, {size}")
    print(f"the log has {swept.log_bytes / 1024:,.0f} KiB")
