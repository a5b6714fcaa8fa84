"""How many tokens a model's requests may have, and who says so (CTX-11).

The session's own setting holds before what is configured, before what a provider said
of itself when it refused a request, before a public list. A window that nobody knows is
unknown; then the configured fallback is in force, and without one nothing is: requests
are sent whole, and the provider says when one is too large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, final

import attrs

from greenroom.protocol import SessionSettings
from greenroom.protocol.context import WindowSource

MAX_TOLD: Final = 1_000
"""Models whose providers' words are remembered; the oldest is forgotten."""


@attrs.frozen
class Window:
    """A window, or that it is not known."""

    tokens: int | None
    source: WindowSource
    fallback: int | None = None
    """What is taken instead where the window is unknown; ``None``: no limit."""

    @property
    def in_force(self) -> int | None:
        """What requests are fitted into; ``None``: into nothing."""
        return self.fallback if self.tokens is None else self.tokens

    def __str__(self) -> str:
        if self.tokens is not None:
            return f"{self.tokens:,} tokens ({self.source})"
        if self.fallback is None:
            return "unknown; the provider says when a request is too large"
        return f"unknown; {self.fallback:,} tokens are assumed"


def _not_listed(_provider: str, _model: str) -> int | None:
    return None


@final
@attrs.define(eq=False)
class Windows:
    """The windows of models; the same for all sessions of an engine."""

    configured: Mapping[str, int] = attrs.field(factory=dict[str, int])
    """Tokens, by the model's name."""
    fallback: int | None = None
    """Tokens for a model that nobody knows; ``None``: no limit is assumed."""
    listed: Callable[[str, str], int | None] = _not_listed
    """Tokens by provider and model, from a public list (`Prices.context_window`)."""
    _told: dict[tuple[str, str], int] = attrs.field(
        factory=dict[tuple[str, str], int], init=False
    )

    def __attrs_post_init__(self) -> None:
        for tokens in (*self.configured.values(), self.fallback):
            if tokens is not None and tokens < 1:
                raise ValueError(f"a context window has at least 1 token, got {tokens}")

    def find(self, settings: SessionSettings) -> Window:
        """Return the window of the model that *settings* name."""
        provider, model = settings.provider, settings.model
        found: tuple[tuple[int | None, WindowSource], ...] = (
            (settings.context_length, "session"),
            (self.configured.get(model), "configured"),
            (self._told.get((provider, model)), "provider"),
            (self.listed(provider, model), "listed"),
        )
        for tokens, source in found:
            if tokens is not None and tokens > 0:
                return Window(tokens, source)
        return Window(None, "unknown", self.fallback)

    def tell(self, provider: str, model: str, tokens: int) -> None:
        """Remember what a provider said of a model's window."""
        if tokens < 1:
            return
        self._told.pop((provider, model), None)
        self._told[provider, model] = tokens
        while len(self._told) > MAX_TOLD:
            del self._told[next(iter(self._told))]
