"""``greenroom doctor``: what is wrong with a state folder, and what to do about it.

Without an option it only looks, beside whoever works in the folder. ``--repair`` needs
the folder alone and makes a backup first; ``--salvage`` writes what can be read to a
new file. Nothing is ever deleted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import attrs

from greenroom.actors.kernel import SystemClock
from greenroom.protocol import TapeEntry
from greenroom.storage import (
    MEANING,
    Examination,
    Finding,
    Repair,
    examine,
    repair,
    salvage,
)

from ._config import Config
from ._exit import CliError, ExitCode
from ._harmless import harmless, json_line

MAX_SHOWN: Final = 20
"""Findings of one kind that are printed; with --json all are."""


def doctor_command(arguments: argparse.Namespace, config: Config) -> int:
    """Examine, repair or salvage; return the exit status."""
    if arguments.salvage is not None:
        return _salvage(config.state, Path(arguments.salvage), as_json=arguments.json)
    if not arguments.repair:
        found = examine(config.state)
        return _report(config.state, found, None, as_json=arguments.json)
    now = datetime.fromtimestamp(SystemClock().now())
    stamp = now.strftime("%Y-%m-%d-%H%M%S")
    done = repair(config.state, f"greenroom-{stamp}-{os.getpid()}")
    return _report(config.state, done.after, done, as_json=arguments.json)


def _report(
    state: Path, found: Examination, done: Repair | None, *, as_json: bool
) -> int:
    if as_json:
        sys.stdout.write(json_line(_values(found, done)))
    else:
        _print_repair(done)
        _print_findings(state, found)
    if found.is_damaged:
        return ExitCode.STATE
    return ExitCode.RUN_FAILED if found.findings else ExitCode.OK


def _print_repair(done: Repair | None) -> None:
    if done is None:
        return
    if done.backup is None:
        print("there was nothing that a repair could mend, so nothing was changed")
        return
    print(f"backup: {harmless(str(done.backup))}")
    for session_id in done.rebuilt:
        print(f"derived anew from its tape: session {harmless(session_id)}")


def _print_findings(state: Path, found: Examination) -> None:
    numbers = [_number(found.sessions, "session"), _number(found.entries, "entry")]
    count = len(found.findings)
    numbers.append(_number(count, "problem") if count else "all is well")
    print(f"{harmless(str(state))}: {', '.join(numbers)}")
    by_code: dict[str, list[Finding]] = {}
    for finding in found.findings:
        by_code.setdefault(finding.code, []).append(finding)
    for findings in by_code.values():
        _print_kind(findings)


def _number(count: int, what: str) -> str:
    if count == 1:
        return f"1 {what}"
    return f"{count} {what[:-1]}ies" if what.endswith("y") else f"{count} {what}s"


def _print_kind(findings: list[Finding]) -> None:
    print()
    for finding in findings[:MAX_SHOWN]:
        where = f"session {finding.session_id}: " if finding.session_id else ""
        print(harmless(f"* {where}{finding.text}"))
    if len(findings) > MAX_SHOWN:
        print(f"* and {len(findings) - MAX_SHOWN} more like these")
    print(f"  {MEANING[findings[0].code]}")


def _values(found: Examination, done: Repair | None) -> dict[str, Any]:
    repaired = None
    if done is not None:
        backup = None if done.backup is None else str(done.backup)
        repaired = {"backup": backup, "rebuilt": done.rebuilt}
    return {
        "sessions": found.sessions,
        "entries": found.entries,
        "isDamaged": found.is_damaged,
        "findings": [
            {
                "code": finding.code,
                "sessionId": finding.session_id,
                "text": finding.text,
                "meaning": MEANING[finding.code],
            }
            for finding in found.findings
        ],
        "repaired": repaired,
    }


#### Salvage


@attrs.define(eq=False)
class _Count:
    entries: int = 0
    sessions: set[str] = attrs.field(factory=set[str])


def _salvage(state: Path, file: Path, *, as_json: bool) -> int:
    entries = salvage(state)
    # The first entry is read before the file is made: no empty file without a state.
    first = next(entries, None)
    try:
        with open(file, "x", encoding="utf-8", opener=_private) as stream:
            count = _write(stream, first, entries)
    except OSError as exc:
        raise CliError(
            f"{str(file)!r} can't be written: {exc.strerror}",
            hint="name a file that is not there yet",
        ) from exc
    if as_json:
        values = {"entries": count.entries, "sessions": len(count.sessions)}
        sys.stdout.write(json_line(values | {"file": str(file)}))
    else:
        sessions = _number(len(count.sessions), "session")
        written = _number(count.entries, "entry")
        print(f"wrote {written} of {sessions} to {harmless(str(file))}")
    return ExitCode.OK


def _write(stream: Any, first: TapeEntry | None, rest: Iterable[TapeEntry]) -> _Count:  # noqa: ANN401 - a text file
    count = _Count()
    for entry in () if first is None else (first, *rest):
        stream.write(json_line(entry))
        count.entries += 1
        count.sessions.add(entry.session_id)
    stream.flush()
    os.fsync(stream.fileno())
    return count


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
