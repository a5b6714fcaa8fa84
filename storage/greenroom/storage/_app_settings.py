"""Settings of the application, typed: each under a key of its own.

What the builtin agent says is not in here, and what is in here is not said for any
agent (AGT-17). A value that can't be read is as if it were not there.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from greenroom.protocol import ModelChoice, normal_pairs, normal_threshold

from ._agents import AgentReader, AgentWriter

_PREFIX: Final = "app."


class AppSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """What holds where neither a session nor its agent says anything."""

    default_agent: str | None = None
    """The user's choice, for entry points that name no agent (AGT-10)."""
    default_model: ModelChoice | None = None
    auto_compaction_enabled: bool | None = None
    auto_compaction_trigger_threshold: int | None = None
    auto_compaction_retain_recent_pairs: int | None = None


APP_KEYS: Final = {
    field.encode_name: field.type for field in msgspec.structs.fields(AppSettings)
}


def read_app_settings(reader: AgentReader) -> AppSettings:
    """Return the settings of the application."""
    found: dict[str, Any] = {}
    for key, kind in APP_KEYS.items():
        text = reader.app_setting(_PREFIX + key)
        try:
            found[key] = None if text is None else msgspec.json.decode(text, type=kind)
        except (msgspec.DecodeError, RecursionError):
            continue
    return _normal(msgspec.convert(found, AppSettings))


def put_app_settings(store: AgentWriter, changes: dict[str, Any], now: float) -> None:
    """Keep *changes*, by key; ``None`` takes a setting away.

    Raises:
        ValueError: there is no such setting, or the value does not fit.
    """
    unknown = sorted(changes.keys() - APP_KEYS.keys())
    if unknown:
        raise ValueError(f"there is no setting {unknown[0][:80]!r}")
    made = _normal(msgspec.convert(changes, AppSettings))
    kept = msgspec.to_builtins(made)
    for key in changes:
        value = kept.get(key)
        text = None if value is None else msgspec.json.encode(value).decode()
        store.put_app_setting(_PREFIX + key, text, now=now)


def _normal(settings: AppSettings) -> AppSettings:
    threshold = settings.auto_compaction_trigger_threshold
    pairs = settings.auto_compaction_retain_recent_pairs
    return msgspec.structs.replace(
        settings,
        auto_compaction_trigger_threshold=(
            None if threshold is None else normal_threshold(threshold)
        ),
        auto_compaction_retain_recent_pairs=(
            None if pairs is None else normal_pairs(pairs)
        ),
    )
