"""Who allowed a call, until it is known whether the call began (TOL-26).

The answer is durable first, then the run of the call starts. The asker is told when the
dispatch is durable or the run has ended; what a strict fact failed at is told instead.
"""

from __future__ import annotations

from typing import final

import attrs

from greenroom.actors.kernel import ReplySlot
from greenroom.protocol import ItemId


@final
@attrs.define(eq=False)
class Granting:
    """One grant on its way."""

    call: ItemId
    reply: ReplySlot[None] | None
    """``None`` once the asker was told."""

    def settle(self) -> None:
        """Tell that the answer was taken, and the call begun or refused."""
        reply, self.reply = self.reply, None
        if reply is not None:
            reply.set_value(None)

    def fail(self, error: BaseException) -> None:
        """Tell what stopped it; too late when the call has begun."""
        reply, self.reply = self.reply, None
        if reply is not None:
            reply.set_error(error)
