"""Configuration in layers: defaults, then a file, the environment, flags.

Each value remembers where it came from, so that ``greenroom config`` can say it. The
file is TOML with the keys of `KEYS` at its top level; a key that isn't one of them is
an error, because a misspelled setting that is silently ignored is worse. Variables
of the environment that aren't ``GREENROOM_<KEY>`` are somebody else's.

Secrets are never part of a value: what is configured is the *name* of the variable
that holds the key. No message here repeats a value, for a key may have been pasted
in the wrong place.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import attrs
import msgspec
import platformdirs

from greenroom.engine import default_state

from ._exit import CliError
from ._hooks import HookSetting, read_hooks

MAX_FILE_BYTES: Final = 64 * 1024

DEFAULT_KEY_VARIABLE: Final = "GREENROOM_API_KEY"
FALLBACK_KEY_VARIABLE: Final = "OPENAI_API_KEY"
"""Read only while ``api_key_env`` is not configured."""

PermissionMode = Literal["default", "auto_approve", "full_access"]
ColorMode = Literal["auto", "always", "never"]
LogForm = Literal["text", "json"]

_Text = Annotated[
    str, msgspec.Meta(min_length=1, max_length=4_096, pattern=r"\A[^\x00-\x1f\x7f]*\Z")
]
_VariableName = Annotated[
    str, msgspec.Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
]


@attrs.frozen
class _Key:
    kind: Any
    """What msgspec converts to."""
    expected: str
    """The same for a person."""
    default: str | int | None = None


_SECONDS: Final = _Key(
    Annotated[float, msgspec.Meta(ge=0, le=86_400)],
    "a number of seconds, up to 86400; 0 means no limit",
)

_AMOUNT: Final = _Key(
    Annotated[float, msgspec.Meta(ge=0, le=1e9)],
    "a number, up to a billion; 0 means no limit, and of a price that it is free",
)

KEYS: Final[Mapping[str, _Key]] = {
    "state": _Key(_Text, "the path of a folder"),
    "model": _Key(_Text, "a model's name"),
    "base_url": _Key(
        _Text,
        "an http or https address without user name, password, query or fragment",
    ),
    "provider": _Key(_Text, "the name of a provider's dialect"),
    "api_key_env": _Key(
        _VariableName,
        "the name of an environment variable, not the key itself",
        DEFAULT_KEY_VARIABLE,
    ),
    "permission_mode": _Key(
        PermissionMode, "one of default, auto_approve, full_access", "default"
    ),
    "max_rounds": _Key(
        Annotated[int, msgspec.Meta(ge=0, le=1_000_000)],
        "a whole number of rounds; 0 means no limit",
    ),
    "budget_tokens": _Key(
        Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000_000)],
        "a whole number of tokens; 0 means no limit",
    ),
    "budget_money": _AMOUNT,
    "budget_seconds": _AMOUNT,
    "price_input": _AMOUNT,
    "price_output": _AMOUNT,
    "color": _Key(ColorMode, "one of auto, always, never", "auto"),
    "log": _Key(LogForm, "one of text, json", "text"),
    "requests_per_second": _Key(
        Annotated[float, msgspec.Meta(ge=0, le=1_000)],
        "a number of requests, up to 1000; 0 means no limit",
    ),
    "connect_seconds": _SECONDS,
    "first_byte_seconds": _SECONDS,
    "idle_seconds": _SECONDS,
    "content_idle_seconds": _SECONDS,
}


class ConfigError(CliError):
    """A setting can't be used; the message names where it stands, and its key."""

    code = "config_error"


@attrs.frozen
class Config:
    """The settings in force, and the origin of each."""

    state: Path
    model: str | None
    base_url: str | None
    provider: str | None
    api_key_env: str
    permission_mode: PermissionMode
    max_rounds: int | None
    budget_tokens: int | None
    """What a turn may use before the user is asked; 0 or absent: no limit."""
    budget_money: float | None
    """US dollars."""
    budget_seconds: float | None
    price_input: float | None
    """US dollars for a million tokens of the model; absent: the public list's."""
    price_output: float | None
    color: ColorMode
    log: LogForm
    """How warnings and errors are written to standard error."""
    requests_per_second: float | None
    """How often the provider may be asked; 0 or absent: as often as wanted."""
    connect_seconds: float | None
    """How long the provider may take to each step; 0: for ever, absent: the default."""
    first_byte_seconds: float | None
    idle_seconds: float | None
    content_idle_seconds: float | None
    origins: Mapping[str, str]
    hooks: tuple[HookSetting, ...] = ()
    """Of the file alone (`greenroom.cli._hooks`)."""

    def api_key_variable(self, environ: Mapping[str, str]) -> str | None:
        """Return the variable that holds the provider's key, if one is set."""
        names = [self.api_key_env]
        if self.origins["api_key_env"] == "default":
            names.append(FALLBACK_KEY_VARIABLE)
        return next((name for name in names if environ.get(name)), None)

    def api_key(self, environ: Mapping[str, str]) -> str | None:
        """Return the provider's key, if one is set. Not for printing."""
        variable = self.api_key_variable(environ)
        return None if variable is None else environ[variable]

    def describe(self, environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Return every setting with its origin; of the key only whether it is set."""
        values = attrs.asdict(self, filter=lambda field, _: field.name in KEYS)
        described: dict[str, dict[str, Any]] = {
            key: {"value": _plain(value), "origin": self.origins[key]}
            for key, value in values.items()
        }
        variable = self.api_key_variable(environ)
        described["api_key"] = {
            "value": "set" if variable else "not set",
            "origin": f"environment {variable}" if variable else "default",
        }
        return described


def default_config_file() -> Path:
    """Return where this platform keeps the configuration of greenroom."""
    return platformdirs.user_config_path("greenroom", appauthor=False) / "config.toml"


def load_config(
    *, flags: Mapping[str, Any], environ: Mapping[str, str], file: Path
) -> Config:
    """Return the settings in force; later layers win, an absent value is no value.

    Raises:
        ConfigError: a layer holds an unknown key or a value that can't be used, or
            *file* exists and can't be read.
    """
    values: dict[str, Any] = {key: KEYS[key].default for key in KEYS}
    origins = dict.fromkeys(KEYS, "default")
    content = _read_toml(file)
    hooks = read_hooks(f"{file}", content.pop("hooks", []))
    layers = (
        _from_file(file, content),
        _from_environment(environ),
        _from_flags(flags),
    )
    for layer in layers:
        for key, (value, origin) in layer.items():
            values[key], origins[key] = value, origin
    values["state"] = Path(values["state"] or default_state()).absolute()
    values["max_rounds"] = values["max_rounds"] or None
    return Config(**values, origins=origins, hooks=hooks)


#### Layers


_Layer = dict[str, tuple[Any, str]]


def _from_file(file: Path, content: Mapping[str, Any]) -> _Layer:
    layer: _Layer = {}
    for key, raw in content.items():
        if key not in KEYS:
            raise ConfigError(
                f"{file}: unknown key {key!r}", hint=f"known keys: {', '.join(KEYS)}"
            )
        value = _convert(key, raw, f"{file}", strict=True)
        # A relative path would mean another folder wherever the file is used.
        if key == "state" and not Path(value).is_absolute():
            raise ConfigError(f"{file}: state must be absolute, or start with ~/")
        layer[key] = (value, f"file {file}")
    return layer


# An empty variable is an unset one: that is how shells take a value back.
def _from_environment(environ: Mapping[str, str]) -> _Layer:
    layer: _Layer = {}
    for key in KEYS:
        name = f"GREENROOM_{key.upper()}"
        if raw := environ.get(name):
            where = f"environment {name}"
            layer[key] = (_convert(key, raw, where, strict=False), where)
    return layer


def _from_flags(flags: Mapping[str, Any]) -> _Layer:
    layer: _Layer = {}
    for key in KEYS:
        if (raw := flags.get(key)) is not None:
            where = f"flag --{key.replace('_', '-')}"
            layer[key] = (_convert(key, raw, where, strict=True), where)
    return layer


def _convert(key: str, raw: Any, where: str, *, strict: bool) -> Any:  # noqa: ANN401
    wanted = KEYS[key]
    try:
        value = msgspec.convert(raw, wanted.kind, strict=strict)
    except msgspec.ValidationError:
        raise ConfigError(f"{where}: {key} must be {wanted.expected}") from None
    if key == "base_url" and not _is_plain_address(value):
        raise ConfigError(f"{where}: {key} must be {wanted.expected}")
    return _expand(value, where) if key == "state" else value


def _is_plain_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and "@" not in parts.netloc
        and not any(mark in text for mark in "?# ")
    )


def _expand(text: str, where: str) -> str:
    try:
        return str(Path(text).expanduser())
    except RuntimeError:
        raise ConfigError(
            f"{where}: state names a home folder that is not known"
        ) from None


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(_read_bounded(file).decode())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise ConfigError(f"{file}: can't be read: {reason}") from exc
    except (tomllib.TOMLDecodeError, RecursionError) as exc:
        raise ConfigError(f"{file}: is not valid TOML: {exc}") from exc


# Opened without waiting: a pipe in the file's place must not hang the command.
def _read_bounded(file: Path) -> bytes:
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{file}: is not a regular file")
        content = stream.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{file}: is larger than {MAX_FILE_BYTES} bytes")
    return content


def _plain(value: Any) -> Any:  # noqa: ANN401
    return str(value) if isinstance(value, Path) else value
