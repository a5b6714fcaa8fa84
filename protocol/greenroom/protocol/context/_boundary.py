"""Where the part of a session that the model is shown begins: reconstruction anchors.

A closed set of names; the newest one on the tape wins (TAP-11). What lies below its
cursor is represented by a checkpoint and stays on the tape, whole: an anchor moves a
boundary and rewrites nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal, get_args

import attrs
import msgspec

from .._canonical import canonical_json
from .._facts import Fact, FactKind, SourceType, TapeEntry

ReconstructionName = Literal[
    "compaction/auto",
    "compaction/manual",
    "compaction/context_pressure",
    "compaction/resume",
    "compaction/migrated_summary",
    "auto_handoff/context_overflow",
    "summary/reset",
]
RECONSTRUCTION_NAMES: Final[frozenset[str]] = frozenset(get_args(ReconstructionName))
SUMMARY_RESET: Final = "summary/reset"
HANDOFF: Final = "auto_handoff/context_overflow"

Order = Annotated[int, msgspec.Meta(ge=1)]


class Reconstruction(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """Payload of a reconstruction anchor."""

    cursor_order_seq: Order = 1
    """Messages with a lower place are represented by the checkpoint."""
    summary: str = ""
    """What the checkpoint says of them; empty for a boundary alone."""
    reason: str = ""
    """Why the boundary moved, where there is no summary that says it; of a handoff all
    that is told (CTX-02)."""
    gaps: tuple[tuple[Order, Order], ...] = ()
    """Places, first and last, that no summary tells of."""
    attempt_id: str | None = None
    """Which try of a compaction it is from."""
    summary_updated_at: float | None = None
    """When a summary was last made, in seconds since the epoch."""
    through_order_seq: int = 0
    """The last place of the transcript when the boundary moved: pressure on a turn up
    to there is answered by it (CTX-19)."""
    tokens_before: int | None = None
    """Estimate of what the boundary hides, the checkpoint before it included."""
    tokens_after: int | None = None
    """Estimate of the checkpoint."""
    restores: int | None = None
    """The entry of an earlier boundary that is in force again; 0: of none."""


@attrs.frozen
class Boundary:
    """The boundary in force, and the entry that moved it there."""

    name: ReconstructionName
    entry: int
    """Its place on the tape."""
    state: Reconstruction

    @property
    def cursor(self) -> int:
        """The first place of the transcript that is shown."""
        return 1 if self.name == SUMMARY_RESET else self.state.cursor_order_seq

    @property
    def has_checkpoint(self) -> bool:
        """Whether something stands for what is not shown."""
        return self.cursor > 1


def boundary_of(entry: TapeEntry) -> Boundary | None:
    """Return the boundary that *entry* makes; ``None`` if it makes none.

    An anchor whose payload can't be read makes none: then more is shown, not less.
    """
    name = entry.fact.name
    if entry.fact.kind is not FactKind.ANCHOR or name not in RECONSTRUCTION_NAMES:
        return None
    try:
        state = msgspec.json.decode(entry.fact.payload, type=Reconstruction)
    except msgspec.DecodeError:
        return None
    return Boundary(name, entry.seq, state)  # pyright: ignore[reportArgumentType] - one of the set


def newest_boundary(entries: Iterable[TapeEntry]) -> Boundary | None:
    """Return the boundary in force behind *entries*, which are in order (TAP-11)."""
    found: Boundary | None = None
    for entry in entries:
        found = boundary_of(entry) or found
    return found


def reconstruction_fact(
    name: ReconstructionName, state: Reconstruction, *, revision: str
) -> Fact:
    """Return the anchor that moves the boundary; *revision* tells it from others."""
    return Fact(
        kind=FactKind.ANCHOR,
        name=name,
        source_type=SourceType.SUMMARY,
        source_id=revision,
        payload=canonical_json(state),
    )
