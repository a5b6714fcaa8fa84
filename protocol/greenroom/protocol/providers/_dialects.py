"""What Chat Completions servers want and do differently, as values.

A profile says only what changes a request or the reading of a reply. Oddities that
can be read in one way everywhere (repeated indexes, missing ids, usage in odd places)
are the decoder's, for every dialect: servers sit behind proxies that add their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, final

import attrs

_ADDRESS: Final = re.compile(
    r"[a-z][a-z0-9+.\-]*://(?:[^/?#@]*@)?([^/?#@]*)", re.IGNORECASE
)
_PORT: Final = re.compile(r":(\d{1,5})$")


@final
@attrs.frozen(kw_only=True)
class Profile:
    """How one dialect of Chat Completions is written and read."""

    name: str
    base_url: str | None = None
    """Where such a server usually is; ``None`` when there is no usual place."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    system_role: Literal["system", "developer"] = "system"
    asks_for_usage: bool = True
    """Send ``stream_options``; without it most servers report no usage."""
    effort_field: Literal["reasoning_effort", "reasoning"] = "reasoning_effort"
    sends_verbosity: bool = False
    reasoning_replay: Literal["none", "content", "details"] = "none"
    """How thinking goes back: not at all, as ``reasoning_content`` of turns with tool
    calls, or as the ``reasoning_details`` that came."""
    stop_with_calls_is_tool_use: bool = True
    """An ordinary stop after complete calls means that they shall run (RUN-22)."""
    calls_in_text: bool = False
    """Look for calls in the text of a reply without native ones (RUN-22)."""
    call_id_limit: int | None = None
    """Longest call id that is accepted, of letters, digits, ``-`` and ``_`` alone."""


PROFILES: Final[Mapping[str, Profile]] = {
    profile.name: profile
    for profile in (
        Profile(
            name="openai",
            base_url="https://api.openai.com/v1",
            max_tokens_field="max_completion_tokens",
            system_role="developer",
            sends_verbosity=True,
            stop_with_calls_is_tool_use=False,
            call_id_limit=40,
        ),
        Profile(
            name="deepseek",
            base_url="https://api.deepseek.com",
            reasoning_replay="content",
        ),
        Profile(name="ollama", base_url="http://127.0.0.1:11434/v1"),
        Profile(name="vllm", base_url="http://127.0.0.1:8000/v1"),
        Profile(name="llama.cpp", base_url="http://127.0.0.1:8080/v1"),
        Profile(
            name="openrouter",
            base_url="https://openrouter.ai/api/v1",
            effort_field="reasoning",
            sends_verbosity=True,
            reasoning_replay="details",
        ),
        Profile(name="compatible"),
        Profile(name="text-tools", calls_in_text=True),
    )
}
"""Every profile by its name; ``compatible`` is for servers nobody described, and
``text-tools`` for models there that write their calls as text."""

_HOSTS: Final = {
    "api.openai.com": "openai",
    "api.deepseek.com": "deepseek",
    "openrouter.ai": "openrouter",
}
_PORTS: Final = {"11434": "ollama"}


def profile_for(base_url: str | None, name: str | None = None) -> Profile:
    """Return the profile called *name*, or else the one that *base_url* suggests.

    Raises:
        ValueError: there is no profile of that name.
    """
    if name is not None:
        return _named(name)
    match = _ADDRESS.match(base_url or "")
    address = match[1].lower() if match else ""
    port = _PORT.search(address)
    host = _PORT.sub("", address)
    if host in _HOSTS:
        return PROFILES[_HOSTS[host]]
    return PROFILES[_PORTS.get(port[1] if port else "", "compatible")]


def _named(name: str) -> Profile:
    try:
        return PROFILES[name]
    except KeyError:
        known = ", ".join(sorted(PROFILES))
        raise ValueError(f"no provider profile {name!r}; known are {known}") from None
