"""What waits for its turn in a session, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from greenroom.protocol import PendingInput, TextPart

from ._harmless import one_line


def print_waiting(rows: Sequence[PendingInput]) -> None:
    """Print one line for each input, in the order in which they are let in."""
    for row in rows:
        print(one_line(waiting_line(row), 160))


def waiting_line(row: PendingInput) -> str:
    """Return where an input stands, and how it begins."""
    parts = row.parts or ()
    said = " ".join(part.text for part in parts if isinstance(part, TextPart))
    images = len(parts) - sum(isinstance(part, TextPart) for part in parts)
    more = f" [{images} images]" if images else ""
    why = f" ({'; '.join(row.blocking)})" if row.blocking else ""
    return f"{row.delivery}: {row.mode} {row.id}{why}: {said[:100]}{more}"
