"""Waiting for a slot, but not for ever."""

from __future__ import annotations

from typing import TypeVar

from greenroom.actors.portal import Slot

T = TypeVar("T")


def came(slot: Slot[T], seconds: float = 10) -> T:
    """Return what *slot* was settled with, or raise it."""
    assert slot.wait_for(seconds), "it does not come"
    return slot.result()


def failed(slot: Slot[T], seconds: float = 10) -> BaseException | None:
    """Return the error that *slot* was settled with."""
    assert slot.wait_for(seconds), "it does not come"
    return slot.error
