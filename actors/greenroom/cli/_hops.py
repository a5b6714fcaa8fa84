"""``greenroom inspect MESSAGE``: the hops of one message, by the ids they share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime

from greenroom.storage import Hop

from ._harmless import json_line, one_line


def print_hops(hops: Sequence[Hop], *, as_json: bool) -> None:
    """Print *hops*, in the order of the tape."""
    if as_json:
        for hop in hops:
            sys.stdout.write(json_line(hop))
        return
    run = ""
    for hop in hops:
        if hop.run_id is not None and hop.run_id != run:
            run = hop.run_id
            print(f"run {one_line(run, 64)}  session {one_line(hop.session_id, 64)}")
        print(_line(hop))


def _line(hop: Hop) -> str:
    at = datetime.fromtimestamp(hop.at).strftime("%H:%M:%S")
    detail = one_line(hop.detail, 120)
    return f"  {at}  {hop.hop:<8}  {detail}  message {one_line(hop.message_id, 64)}"
