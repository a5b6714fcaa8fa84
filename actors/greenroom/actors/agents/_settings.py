"""A new session's settings: what was asked for, else the agent's, else the defaults.

Pure. Read once, when the session is made: a later change of the agent leaves the
session as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import final

import attrs

from greenroom.protocol import (
    AgentConfig,
    AgentDescriptor,
    ModelChoice,
    NativeAgent,
)
from greenroom.storage import AppSettings


@final
@attrs.frozen
class SessionDefaults:
    """What a new session has where neither its maker nor its agent says it."""

    workspace: Path | None = None
    model: ModelChoice | None = None
    permission_mode: str = "default"
    system_prompt: str = ""
    max_rounds: int | None = None


@final
@attrs.frozen
class Selected:
    """The agent that a new session is of, and what holds where it says nothing."""

    agent: AgentDescriptor
    app: AppSettings

    @property
    def config(self) -> AgentConfig:
        """What is in force for the agent; the defaults for one that has none."""
        return self.agent.config if isinstance(self.agent, NativeAgent) else _DEFAULTS

    def model(
        self,
        provider: str | None,
        model: str | None,
        first: str,
        default: ModelChoice | None = None,
    ) -> ModelChoice:
        """Return who answers; *first* is the provider where nobody names one.

        A model is a provider's: that of the agent, of the application, or the
        *default*, goes with its own provider only.
        """
        wanted = self.config.default_model or self.app.default_model or default
        chosen = provider or (first if wanted is None else wanted.provider)
        if model is not None:
            return ModelChoice(chosen, model)
        if wanted is not None and wanted.provider == chosen:
            return wanted
        return ModelChoice(chosen, "default")


_DEFAULTS = AgentConfig()
