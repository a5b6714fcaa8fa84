"""What a session's requests have to know of its tape: its life, and its boundary."""

from __future__ import annotations

from typing import Protocol

import attrs
import msgspec

from greenroom.protocol import CorruptStoreError, SessionId, TapeEntry
from greenroom.protocol.context import (
    RECONSTRUCTION_NAMES,
    Boundary,
    newest_boundary,
)
from greenroom.storage import CONTEXT_PRESSURE, Page

_LOOKED_AT = 20
"""Anchors of a name: more than one only where the newer ones can't be read."""


@attrs.frozen
class Beginning:
    """Which life of a tape it is, and where what the model is shown begins."""

    incarnation: str
    boundary: Boundary | None = None
    pressed: bool = False
    """A request was too large since the boundary moved, and nobody said so (CTX-19)."""


class TapeReader(Protocol):
    """What is read of a tape."""

    def page(self, scope: SessionId, after: int, limit: int = 256) -> Page:
        """Return entries behind *after*."""
        ...

    def named(
        self, scope: SessionId, name: str, *, before: int | None = None, limit: int = 20
    ) -> list[TapeEntry]:
        """Return the newest entries called *name*."""
        ...


def read_boundary(
    reader: TapeReader, scope: SessionId, *, before: int | None = None
) -> Boundary | None:
    """Return the boundary in force in *scope*, or that of before an entry."""
    anchors = [
        entry
        for name in RECONSTRUCTION_NAMES
        for entry in reader.named(scope, name, before=before, limit=_LOOKED_AT)
    ]
    anchors.sort(key=lambda entry: entry.seq)
    return newest_boundary(anchors)


def read_beginning(reader: TapeReader, scope: SessionId) -> Beginning:
    """Return the beginning of the session *scope*; costs the same for any length.

    Raises:
        CorruptStoreError: the tape has no first entry that says which life it is.
    """
    boundary = read_boundary(reader, scope)
    pressure = reader.named(scope, CONTEXT_PRESSURE, limit=1)
    answered = 0 if boundary is None else boundary.entry
    pressed = any(entry.seq > answered for entry in pressure)
    return Beginning(incarnation_of(reader, scope), boundary, pressed)


class _Start(msgspec.Struct, frozen=True):
    incarnation: str


def incarnation_of(reader: TapeReader, scope: SessionId) -> str:
    """Return which tape of the session *scope* this is; clearing begins another one.

    Raises:
        CorruptStoreError: the tape has no first entry that says it.
    """
    first = reader.page(scope, 0, 1).entries
    try:
        return msgspec.json.decode(first[0].fact.meta, type=_Start).incarnation
    except (IndexError, msgspec.DecodeError) as exc:
        raise CorruptStoreError(
            f"the tape of session {scope!r} does not begin with its start"
        ) from exc
