"""Who answers, from the configuration: a provider on the network, or a rehearsal."""

from __future__ import annotations

import math
import os
from contextlib import AsyncExitStack

from greenroom.actors.providers import ChatCompletionsProvider, Clocks
from greenroom.engine import Provider, RateLimit

from ._config import Config
from ._exit import CliError
from ._rehearsal import rehearsal


async def open_provider(config: Config, stack: AsyncExitStack) -> tuple[Provider, str]:
    """Return the provider and the model; *stack* closes it.

    Raises:
        CliError: only one of model and provider is named, or the address can't be used.
    """
    key = config.api_key(os.environ)
    if config.base_url is None and config.provider is None and key is None:
        if config.model is not None:
            raise CliError(
                "a model is named, but not who serves it",
                hint="name a provider with --provider or --base-url, or put a key for "
                f"api.openai.com into {config.api_key_env}",
            )
        return rehearsal(), "rehearsal"
    if config.model is None:
        raise CliError(
            "no model is named",
            hint="name one with --model, GREENROOM_MODEL or model in the config file",
        )
    named = config.provider or (None if config.base_url else "openai")
    try:
        provider = ChatCompletionsProvider(
            config.base_url, api_key=key, profile=named, clocks=clocks_of(config)
        )
    except ValueError as exc:
        raise CliError(f"the provider can't be used: {exc}") from exc
    return await stack.enter_async_context(provider), config.model


def clocks_of(config: Config) -> Clocks:
    """Return how long the provider may take; 0 is for ever."""
    configured = {
        "connect": config.connect_seconds,
        "first_byte": config.first_byte_seconds,
        "idle": config.idle_seconds,
        "content_idle": config.content_idle_seconds,
    }
    told = {k: v or math.inf for k, v in configured.items() if v is not None}
    return Clocks(**told)


def rate_limits_of(config: Config, provider: Provider) -> dict[str, RateLimit]:
    """Return how often *provider* may be asked, for `open_engine`.

    Raises:
        CliError: so seldom that nobody would wait for it.
    """
    if not config.requests_per_second:
        return {}
    try:
        return {provider.id: RateLimit(config.requests_per_second)}
    except ValueError as exc:
        raise CliError(f"requests_per_second can't be used: {exc}") from exc
