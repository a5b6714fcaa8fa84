"""What clients did and were told, over all lives of a history."""

from __future__ import annotations

from collections import defaultdict

import attrs

from greenroom.engine import TurnResult
from greenroom.protocol import Answer, Delivery, Event


@attrs.define(eq=False)
class Watch:
    """What one who followed was told, from a cursor on."""

    session_id: str
    after: int
    events: list[Event] = attrs.field(factory=list)
    """The durable ones."""


@attrs.frozen
class Accepted:
    """An input that was put in, and where it was said to stand."""

    session_id: str
    command_id: str
    began: int
    """The step at which it was put in first; steps are those of all clients."""
    ended: int
    """The step at which its client was told."""
    delivery: Delivery


@attrs.define(eq=False)
class Notes:
    """What clients were told."""

    turns: list[tuple[str, str, TurnResult]] = attrs.field(factory=list)
    """Session, command and result."""
    answers: list[tuple[str, str, Answer]] = attrs.field(factory=list)
    """Session, interaction and the answer that was taken."""
    watched: list[Watch] = attrs.field(factory=list)
    began: dict[str, int] = attrs.field(factory=dict)
    """The step at which a command was put in first."""
    accepted: list[Accepted] = attrs.field(factory=list)
    edits: dict[str, set[str]] = attrs.field(factory=lambda: defaultdict(set))
    """What an input may have become: every edit that was asked for, by input."""
    edited: set[str] = attrs.field(factory=set)
    """Inputs with an edit that was told to be made."""
    taken_back: set[tuple[str, str]] = attrs.field(factory=set)
    """Inputs that were told to be deleted."""
    forked: list[tuple[str, str]] = attrs.field(factory=list)
    """Source and fork."""
    moved: int = 0
    rewound: set[str] = attrs.field(factory=set)
    """Sessions that a rewind was asked for."""
    cleared: set[str] = attrs.field(factory=set)
    """Sessions that were asked to forget what was said."""
    first: set[str] = attrs.field(factory=set)
    """Sessions that were there in the beginning, with Skills selected."""
    doomed: set[str] = attrs.field(factory=set)
    """Sessions whose deletion was asked for."""
    deleted: set[str] = attrs.field(factory=set)
    """Sessions that were told to be deleted."""
    commands: int = 0
    steps: int = 0

    def command(self) -> str:
        """Return the id of a command that nobody has sent."""
        self.commands += 1
        return f"command {self.commands}"

    def step(self) -> int:
        """Count one more step."""
        self.steps += 1
        return self.steps
