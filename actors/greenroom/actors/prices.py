"""What models cost and how much they hold: what was configured, then what is public.

The public price list is the package genai-prices, the extra ``prices``; it is data in
that package, and nothing is fetched. Without it, and for a provider or model that it
does not know, a price is unknown, which is never zero. A price is looked up by the
provider's address and the model, never by the model alone: the same name costs
something else elsewhere.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final, final

import attrs

from greenroom.protocol import Price, Usage, cost_of

_NOTHING: Final = Usage(input=0, output=0, total=0)


@final
@attrs.define(eq=False)
class Prices:
    """Prices of models: those that are configured, until the public list is loaded."""

    configured: Mapping[str, Price] = attrs.field(factory=dict[str, Price])
    """By the model's name; before what is public."""
    _listed: Any = attrs.field(default=None, init=False)

    def load(self) -> bool:
        """Load the public list, and return whether it is installed.

        Blocks for as long as the import takes, which may be a second: call it in a
        thread, or before a loop runs.
        """
        try:
            # Not at the top: nobody who asks for no price should wait for it.
            self._listed = importlib.import_module("genai_prices")
        except ImportError:
            return False
        return True

    def cost(self, provider: str, model: str, usage: Usage) -> float | None:
        """Return what *usage* costs, in US dollars; ``None``: not known."""
        price = self.configured.get(model)
        if price is not None:
            return cost_of(usage, price)
        found = self._find(provider, model, usage)
        return None if found is None else float(found.total_price)

    def context_window(self, provider: str, model: str) -> int | None:
        """Return how many tokens a request to *model* may have; ``None``: not known."""
        found = self._find(provider, model, _NOTHING)
        return None if found is None else found.model.context_window

    def _find(self, provider: str, model: str, usage: Usage) -> Any:  # noqa: ANN401 - the list's own type
        _, at, host = provider.rpartition("@")
        if self._listed is None or not (at and host):
            return None
        try:
            return self._listed.calc_price(
                self._listed.Usage(
                    input_tokens=usage.input,
                    output_tokens=usage.output,
                    cache_read_tokens=usage.cache_read or 0,
                    cache_write_tokens=usage.cache_write or 0,
                ),
                model_ref=model,
                provider_api_url=f"https://{host}",
            )
        except (LookupError, ValueError):
            # Not listed, or numbers that can't be: then nobody knows.
            return None
