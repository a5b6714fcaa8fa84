"""How a session is compacted: what its agent says, and the models that may be asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Protocol, final

import attrs
import msgspec

from greenroom.actors.kernel import Ids
from greenroom.actors.providers import Provider, RateGate
from greenroom.protocol import AgentConfig, ModelChoice, SessionId, SessionSettings

from ._strategy import Strategy, SummaryModel
from ._windows import Windows


class Configs(Protocol):
    """Where agents' configurations come from."""

    async def config(self, agent_id: str) -> AgentConfig | None:
        """Return what is in force for a native agent; ``None`` for any other."""
        ...


@attrs.frozen
class CompactionPolicy:
    """What is in force for a session."""

    enabled: bool
    """Whether it is compacted before there is pressure."""
    threshold: int
    """Per cent; see `trigger_tokens`."""
    pairs_kept: int
    models: tuple[SummaryModel, ...]


@final
@attrs.frozen
class Policies:
    """Finds the policy of a session."""

    configs: Configs
    providers: Mapping[str, Provider]
    gates: Mapping[str, RateGate]
    windows: Windows

    async def find(self, settings: SessionSettings) -> CompactionPolicy:
        """Return what is in force for a session with *settings*.

        Raises:
            StorageError: its agent can't be read.
        """
        config = await self.configs.config(settings.agent_id) or AgentConfig()
        return CompactionPolicy(
            enabled=config.auto_compaction_enabled,
            threshold=config.auto_compaction_trigger_threshold,
            pairs_kept=config.auto_compaction_retain_recent_pairs,
            models=tuple(self._models(settings, config.assistant_model)),
        )

    def _models(
        self, settings: SessionSettings, assistant: ModelChoice | None
    ) -> Iterator[SummaryModel]:
        chat = ModelChoice(settings.provider, settings.model)
        for choice in (chat,) if assistant is None else (assistant, chat):
            provider = self.providers.get(choice.provider)
            if provider is not None:
                yield SummaryModel(
                    provider,
                    choice.model,
                    self._window(settings, choice, own=choice == chat),
                    self.gates.get(choice.provider),
                )

    def _window(
        self, settings: SessionSettings, choice: ModelChoice, *, own: bool
    ) -> int | None:
        # What the session says of its own model's window holds for no other.
        named = msgspec.structs.replace(
            settings,
            provider=choice.provider,
            model=choice.model,
            context_length=settings.context_length if own else None,
        )
        return self.windows.find(named).tokens


@attrs.frozen
class CompactionSetup:
    """What compactions are made with; the same for all sessions of an engine."""

    strategy: Strategy
    policy: Callable[[SessionSettings], Awaitable[CompactionPolicy]]
    ids: Ids
    now: Callable[[], float]
    applied: Callable[[SessionId, SessionSettings], None]
    """Told when a session's history was compacted; never waits (SKL-08)."""
