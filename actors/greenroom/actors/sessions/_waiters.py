"""Who waits for the end of which turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import attrs

from greenroom.actors.kernel import ReplySlot

from ._messages import TurnResult


@final
@attrs.define(eq=False)
class Waiters:
    """The askers of each command that has no result yet.

    A command keeps its place when its askers have left: its turn goes on without them,
    or is taken back by a cancel that names it.
    """

    _replies: dict[str, list[ReplySlot[TurnResult]]] = attrs.field(
        factory=dict[str, list[ReplySlot[TurnResult]]], init=False
    )

    def __len__(self) -> int:
        return len(self._replies)

    def __contains__(self, command_id: str) -> bool:
        return command_id in self._replies

    @property
    def anybody(self) -> bool:
        """Whether somebody still waits for a result."""
        return any(self._replies.values())

    def add(self, command_id: str, reply: ReplySlot[TurnResult]) -> None:
        """Let one more asker wait for *command_id*."""
        self._replies.setdefault(command_id, []).append(reply)

    def leave(self, reply: ReplySlot[TurnResult]) -> None:
        """Forget an asker that has given up."""
        for replies in self._replies.values():
            if reply in replies:
                replies.remove(reply)

    def settle(self, command_id: str, result: TurnResult) -> None:
        """Give *result* to all who wait for *command_id*."""
        for reply in self._replies.pop(command_id, ()):
            reply.set_value(result)

    def fail(self, command_id: str, error: Exception) -> None:
        """Give *error* to all who wait for *command_id*."""
        for reply in self._replies.pop(command_id, ()):
            reply.set_error(error)

    def fail_each(self, command_ids: Iterable[str], error: Exception) -> None:
        """Give *error* to all who wait for one of *command_ids*."""
        for command_id in command_ids:
            self.fail(command_id, error)

    def fail_all(self, error: Exception) -> None:
        """Give *error* to everybody."""
        self.fail_each(tuple(self._replies), error)
