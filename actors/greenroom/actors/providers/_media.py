"""Requests for other things than text: transcription, speech, images and video.

A model is found by what it can do, and one that can't is refused before anything is
sent (PER-09). What is sent goes the way of every attempt: through the provider's port
and its rate gate, with a trace; it can be cancelled, and then its connection closes.
Two things of a run are not here: nothing is sent a second time, because it costs much
and may have had its effect, and no context is counted or made to fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import attrs

from greenroom.protocol import GreenroomError, ProviderFailure, WireRequest

from ._one_shot import ask_once
from ._rate_gate import RateGate

MediaKind = Literal["transcription", "speech", "image", "video"]


class CapabilityError(GreenroomError):
    """No provider here, or not the one that was named, can do what is asked for."""

    code = "capability_missing"
    hint = "name a provider and a model that can"


@attrs.frozen
class MediaRequest:
    """What is asked for: text, or bytes to be read."""

    kind: MediaKind
    model: str
    text: str = ""
    """What to say or to show; for a transcription, what helps to hear it."""
    data: bytes = b""
    media_type: str = ""


@attrs.frozen
class MediaReply:
    """What came back: text of a transcription, else bytes."""

    text: str = ""
    data: bytes = b""
    media_type: str = ""


class MediaProvider(Protocol):
    """Something that makes or reads media; one call is one physical attempt."""

    @property
    def id(self) -> str:
        """What it is called in records."""
        ...

    def models(self, kind: MediaKind) -> Sequence[str]:
        """Return the models that can do *kind*, the one to take first at first."""
        ...

    def wire(self, request: MediaRequest) -> WireRequest:
        """Return *request* as it is sent, for a trace. Pure."""
        ...

    async def send(self, request: MediaRequest) -> MediaReply | ProviderFailure:
        """Send *request* once; faults are returned, a cancel closes the connection."""
        ...


MediaTrace = Callable[[str, MediaRequest, WireRequest], object]
"""Is told provider, request and what is sent, before it is. It must not raise."""


def find_media(
    kind: MediaKind,
    providers: Iterable[MediaProvider],
    *,
    provider: str | None = None,
    model: str | None = None,
) -> tuple[MediaProvider, str]:
    """Return who does *kind*, and with which model.

    Of what is not named, the first that can is taken.

    Raises:
        CapabilityError: nobody can, or what was named can't.
    """
    for each in providers:
        if provider is not None and each.id != provider:
            continue
        able = each.models(kind)
        if able and model is None:
            return each, able[0]
        if model is not None and model in able:
            return each, model
    who = f"model {model!r}" if model else "a model"
    where = f" of provider {provider!r}" if provider else ""
    raise CapabilityError(f"there is not {who}{where} that can do {kind}")


async def request_media(
    kind: MediaKind,
    providers: Iterable[MediaProvider],
    *,
    provider: str | None = None,
    model: str | None = None,
    text: str = "",
    data: bytes = b"",
    media_type: str = "",
    gates: Mapping[str, RateGate],
    trace: MediaTrace,
    now: Callable[[], float],
) -> MediaReply:
    """Ask for media once and return what comes back.

    Args:
        gates: by the provider's id; its requests wait there with all others (TRY-20).
        trace: told what is sent (TRY-23).
        now: the time since the epoch, in seconds.

    Raises:
        CapabilityError: nobody can do it; nothing was sent.
        ProviderError: it failed; the class says what could be done about it.
    """
    chosen, name = find_media(kind, providers, provider=provider, model=model)
    request = MediaRequest(kind, name, text, data, media_type)
    gate = gates.get(chosen.id)

    async def send() -> MediaReply | ProviderFailure:
        if gate is not None:
            await gate.enter(lambda until: None)
        trace(chosen.id, request, chosen.wire(request))
        return await chosen.send(request)

    one_shot = "speech" if kind == "transcription" else kind
    return await ask_once(one_shot, send, now=now, random=lambda: 0.0, retries=0)
