"""Changes of a session's settings, checked."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec

from greenroom.protocol import SessionSettings, round_limit

from ._messages import TurnRefusedError

MAX_ANSWER_SECONDS: Final = 366 * 86_400.0
"""How long an interaction may wait before it expires; without a clock, for ever."""


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
        if changes.get("agent_id", settings.agent_id) != settings.agent_id:
            # Whose a session is, is no matter of its own (DEL-10).
            raise TurnRefusedError(
                "unknown_setting", "the agent is no setting; move the session to it"
            )
        made = SessionSettings(**(current | changes))
        made = msgspec.structs.replace(made, max_rounds=round_limit(made.max_rounds))
        _check_clocks(made)
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


def _check_clocks(settings: SessionSettings) -> None:
    for name in ("permission_seconds", "question_seconds"):
        seconds: float | None = getattr(settings, name)
        if seconds is not None and not 0 < seconds <= MAX_ANSWER_SECONDS:
            raise TurnRefusedError(
                "wrong_setting",
                f"{name} must be above 0 and at most {MAX_ANSWER_SECONDS:g}, or None",
            )
