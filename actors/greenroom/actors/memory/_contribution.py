"""What a turn is told of what its agent remembers (SKL-07).

Asked for once in each turn, after the user's message is on the tape and before the
view is sent; a run that goes on with the turn is told the same. It is text before the
user's words, never an instruction. What became of it is on the tape, without the text.
"""

from __future__ import annotations

import logging
from typing import Final, final

import attrs
import trio

from greenroom.actors.backend import RunPlan
from greenroom.actors.kernel import Reaper
from greenroom.protocol import (
    ACCESS_SECONDS,
    CONTRIBUTION_SECONDS,
    MAX_TURNS,
    ContributionMade,
    MessageId,
    TextPart,
    UserMessage,
    contribution_of,
)

from ._ports import Configs, MemoryPort

_LOG: Final = logging.getLogger("greenroom.memory")


ENDING_SECONDS: Final = 0.1
"""Of the bound, what is left to end an answer that did not come."""


@attrs.frozen
class _Told:
    until: float
    made: ContributionMade


@final
@attrs.define(eq=False)
class Contributions:
    """The `contribute` port of runs; time is trio's."""

    port: MemoryPort
    configs: Configs
    reaper: Reaper
    _told: dict[MessageId, _Told] = attrs.field(
        factory=dict[MessageId, _Told], init=False
    )

    async def __call__(self, plan: RunPlan) -> ContributionMade | None:
        """See `greenroom.actors.backend.Contribute`."""
        message_id = plan.message.id
        known = self._told.get(message_id)
        if known is not None and trio.current_time() < known.until:
            return known.made
        made = await self._ask(plan)
        if made is not None:
            self._keep(message_id, made)
        return made

    async def _ask(self, plan: RunPlan) -> ContributionMade | None:
        message_id, agent_id = plan.message.id, plan.settings.agent_id
        with trio.move_on_after(CONTRIBUTION_SECONDS - ENDING_SECONDS):
            try:
                config = await self.configs.config(agent_id)
                if config is None or not config.memory_enabled:
                    return None
                text = await self._recalled(plan)
            except Exception as exc:
                _LOG.warning("nothing was recalled for %s: %s", agent_id, describe(exc))
                return ContributionMade(message_id=message_id, state="failed")
            budget = config.memory_injection_token_budget
            return contribution_of(message_id, text, budget)
        _LOG.warning("memory of %s took too long; the turn goes on", agent_id)
        return ContributionMade(message_id=message_id, state="late")

    async def _recalled(self, plan: RunPlan) -> str:
        # At the reaper: a memory that never ends holds up nobody.
        operation = self.reaper.start(
            self.port.contribute,
            plan.settings.agent_id,
            plan.session_id,
            _prompt(plan),
            name="recall",
        )
        try:
            text = (await operation.wait()).unwrap()
        finally:
            if not operation.done:
                await operation.stop(0.0, 0.0)
        if not isinstance(text, str):
            raise TypeError(f"a memory must be text, got {type(text).__name__}")
        return text

    def _keep(self, message_id: MessageId, made: ContributionMade) -> None:
        now = trio.current_time()
        live = {key: each for key, each in self._told.items() if now < each.until}
        while len(live) >= MAX_TURNS:
            del live[next(iter(live))]
        self._told = live | {message_id: _Told(now + ACCESS_SECONDS, made)}


def _prompt(plan: RunPlan) -> str:
    messages = plan.view.messages
    last = messages[-1] if messages else None
    if not isinstance(last, UserMessage):
        return ""
    return "\n".join(part.text for part in last.parts if isinstance(part, TextPart))


def describe(exc: Exception) -> str:
    """Return what failed, for the log, on one line."""
    return " ".join(f"{type(exc).__name__}: {exc}".split())[:200]
