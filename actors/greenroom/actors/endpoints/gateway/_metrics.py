"""Counts of the gateway and its engine as Prometheus reads them (text format 0.0.4)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")


def metrics_text(counts: Mapping[str, float], closed: Mapping[int, int]) -> str:
    """Return every count by its name, and connections that ended by close code.

    What only grows has a name that ends in ``_total``.
    """
    lines: list[str] = []
    for name, value in sorted(counts.items()):
        full = f"greenroom_{_NAME.sub('_', name)}"
        kind = "counter" if full.endswith("_total") else "gauge"
        lines += [f"# TYPE {full} {kind}", f"{full} {value:.17g}"]
    name = "greenroom_gateway_closed_total"
    lines.append(f"# TYPE {name} counter")
    lines += [
        f'{name}{{code="{code}"}} {count}' for code, count in sorted(closed.items())
    ]
    return "".join(f"{line}\n" for line in lines)
