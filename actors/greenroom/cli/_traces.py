"""``greenroom inspect --traces``: what was sent to the provider, attempt by attempt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from greenroom.protocol import AttemptTrace, RunId

from ._harmless import json_line, one_line

SHOWN_CHARS: Final = 200
"""Of a payload, for a person; ``--json`` has it whole."""


def traces_of(
    traces: Sequence[AttemptTrace], run_id: RunId | None
) -> list[AttemptTrace]:
    """Return those of one run, or all."""
    return [trace for trace in traces if run_id in (None, trace.run_id)]


def print_traces(traces: Sequence[AttemptTrace], *, as_json: bool) -> None:
    """Print *traces*, oldest first."""
    if as_json:
        for trace in traces:
            sys.stdout.write(json_line(trace))
    elif not traces:
        print("nothing was sent to a provider, as far as it is kept")
    for trace in () if as_json else traces:
        print("\n".join(_lines(trace)))


def _lines(trace: AttemptTrace) -> tuple[str, str]:
    sent = datetime.fromtimestamp(trace.created_at).strftime("%Y-%m-%d %H:%M:%S")
    size = f"{len(trace.payload.encode()):,} bytes"
    cut = ", cut" if trace.truncated else ""
    which = (
        f"round {trace.logical_round}, request {trace.request_seq}, "
        f"attempt {trace.physical_attempt}"
    )
    whom = f"{one_line(trace.provider, 50)}  {one_line(trace.model, 50)}"
    payload = one_line(trace.payload, SHOWN_CHARS)
    return f"{sent}  {which}  {whom}  {size}{cut}", f"    {payload}"
