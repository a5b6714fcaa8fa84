"""Changes of a session's settings, checked."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from greenroom.protocol import SessionSettings, round_limit

from ._messages import TurnRefusedError


def changed_settings(
    settings: SessionSettings, changes: dict[str, Any]
) -> SessionSettings:
    """Return *settings* with *changes*, every value checked.

    Raises:
        TurnRefusedError: an unknown name or a value that does not fit.
    """
    try:
        current = msgspec.structs.asdict(settings)
        unknown = changes.keys() - current.keys()
        if unknown:
            raise TurnRefusedError(
                "unknown_setting", f"no such setting: {', '.join(sorted(unknown))}"
            )
        made = SessionSettings(**(current | changes))
        made = msgspec.structs.replace(made, max_rounds=round_limit(made.max_rounds))
        encoded = msgspec.json.encode(made)
        return msgspec.json.decode(encoded, type=SessionSettings)
    except (msgspec.ValidationError, TypeError) as exc:
        raise TurnRefusedError("wrong_setting", f"a setting is wrong: {exc}") from exc


def check_provider(provider: str, providers: Collection[str]) -> None:
    """Check that a session's *provider* is one of those that are set up.

    Raises:
        TurnRefusedError: it is not.
    """
    if provider not in providers:
        known = ", ".join(sorted(providers))
        raise TurnRefusedError(
            "unknown_provider",
            f"the provider {provider!r} is not set up here; there is {known}: "
            "change the session's settings first",
        )
