"""Answers that came while the run of an earlier answer goes on."""

from __future__ import annotations

from typing import Any, Final, final

import attrs

from greenroom.actors.kernel import Ask, ReplySlot

from ._messages import TurnRefusedError

MAX_HELD_ANSWERS: Final = 64
"""Answers that may wait for the run of an earlier one."""


@final
@attrs.define(eq=False)
class HeldAnswers:
    """Asks that are looked at when the run has ended."""

    _asks: list[Ask[Any]] = attrs.field(factory=list[Ask[Any]], init=False)

    def hold(self, ask: Ask[Any]) -> None:
        """Let *ask* wait, or refuse it when too many do."""
        if len(self._asks) < MAX_HELD_ANSWERS:
            self._asks.append(ask)
            return
        ask.reply.set_error(
            TurnRefusedError(
                "too_many_answers",
                f"{MAX_HELD_ANSWERS} answers wait for the run of an earlier one",
            )
        )

    def forget(self, reply: ReplySlot[Any]) -> None:
        """Forget an answer that was taken back: it is none."""
        self._asks = [ask for ask in self._asks if ask.reply is not reply]

    def take(self) -> list[Ask[Any]]:
        """Return every ask, and hold none."""
        asks, self._asks = self._asks, []
        return asks

    def refuse(self) -> None:
        """Refuse every ask: the turn has ended."""
        for ask in self.take():
            ask.reply.set_error(TurnRefusedError("turn_ended", "the turn has ended"))
