"""``[[hooks]]`` of the configuration file: who is told what happens (SKL-10).

    [[hooks]]
    on = ["needs_you", "failed"]
    command = ["notify-send", "greenroom"]

    [[hooks]]
    on = ["finished"]
    url = "https://example.org/notices"
    token_env = "NOTICES_TOKEN"
    timeout = 5

Strict: a misspelled key or event is an error. No message repeats a value, for a token
may have been pasted in the wrong place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, cast

import attrs
import msgspec

from greenroom.actors.hooks import check_address
from greenroom.engine import CommandHook, Hook, Webhook
from greenroom.protocol import HOOK_GROUPS, HOOK_NAMES

from ._exit import CliError

MAX_HOOKS: Final = 16
MAX_SECONDS: Final = 60
DEFAULT_TIMEOUT: Final = 10.0

EVENTS: Final = HOOK_NAMES | HOOK_GROUPS

_Word = Annotated[
    str, msgspec.Meta(min_length=1, max_length=4_096, pattern=r"\A[^\x00]*\Z")
]
_FIELDS: Final[Mapping[str, tuple[Any, str]]] = {
    "on": (
        Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=16)],
        "a list of events",
    ),
    "command": (
        Annotated[tuple[_Word, ...], msgspec.Meta(min_length=1, max_length=64)],
        "a list of the program and its arguments",
    ),
    "url": (_Word, "an http or https address without user name or password"),
    "timeout": (
        Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)],
        f"a number of seconds above 0, up to {MAX_SECONDS}",
    ),
    "token_env": (
        Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]{0,127}\Z")],
        "the name of an environment variable, not the token itself",
    ),
}


class HookError(CliError):
    """A hook can't be used; the message names where it stands."""

    code = "config_error"


@attrs.frozen
class HookSetting:
    """One checked table."""

    where: str
    on: frozenset[str]
    command: tuple[str, ...] | None = None
    url: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    token_env: str | None = None


def read_hooks(where: str, raw: object) -> tuple[HookSetting, ...]:
    """Return the hooks of the file called *where*, each of them checked.

    Raises:
        HookError: one can't be used.
    """
    if not isinstance(raw, list):
        raise HookError(f"{where}: hooks must be tables, each under [[hooks]]")
    tables = cast("list[object]", raw)
    if len(tables) > MAX_HOOKS:
        raise HookError(f"{where}: there are more than {MAX_HOOKS} hooks")
    return tuple(
        _setting(f"{where}: hook {number}", table)
        for number, table in enumerate(tables, 1)
    )


def _setting(where: str, raw: object) -> HookSetting:
    if not isinstance(raw, dict):
        raise HookError(f"{where} must be a table")
    table = cast("dict[str, Any]", raw)
    for key in table.keys() - _FIELDS.keys():
        raise HookError(
            f"{where}: unknown key {key[:80]!r}",
            hint=f"known keys: {', '.join(_FIELDS)}",
        )
    values = {key: _field(where, key, value) for key, value in table.items()}
    on = frozenset(values.pop("on", ()))
    if not on or not on <= EVENTS:
        raise HookError(
            f"{where}: on must be a list of events",
            hint=f"events: {', '.join(sorted(EVENTS))}",
        )
    if ("command" in values) == ("url" in values):
        raise HookError(f"{where} needs either a command or a url")
    if "token_env" in values and "url" not in values:
        raise HookError(f"{where}: token_env is for a hook with a url")
    return HookSetting(where, on, **values)


def _field(where: str, key: str, value: object) -> Any:  # noqa: ANN401 - the field's kind
    kind, expected = _FIELDS[key]
    try:
        made = msgspec.convert(value, kind)
        if key == "url":
            check_address(made)
    except (msgspec.ValidationError, ValueError):
        raise HookError(f"{where}: {key} must be {expected}") from None
    return made


def make_hooks(
    settings: tuple[HookSetting, ...], environ: Mapping[str, str]
) -> list[Hook]:
    """Return the hooks of *settings*, for `open_engine`.

    Raises:
        HookError: a variable for a token is not set.
    """
    return [_hook(setting, environ) for setting in settings]


def _hook(setting: HookSetting, environ: Mapping[str, str]) -> Hook:
    if setting.command is not None:
        return CommandHook(setting.command, setting.on, setting.timeout, environ)
    assert setting.url is not None
    variable = setting.token_env
    token = None if variable is None else environ.get(variable)
    if variable is not None and not token:
        raise HookError(
            f"{setting.where}: the variable {variable} is not set",
            hint="set it to the token, or take token_env away",
        )
    return Webhook(setting.url, setting.on, setting.timeout, token)
