"""Media are asked for by capability, once, through the provider's runtime."""

from __future__ import annotations

import math
from typing import Any

import attrs
import httpx2
import pytest
import trio
from trio.testing import MockClock

from greenroom.actors.providers import (
    CapabilityError,
    MediaReply,
    MediaRequest,
    ProviderError,
    RateGate,
    RateLimit,
    find_media,
    request_media,
)
from greenroom.protocol import WireRequest
from greenroom.protocol.providers import make_failure

KINDS = ["transcription", "speech", "image", "video"]


@attrs.define(eq=False)
class Studio:
    """A provider that makes what it can, and notes when it was asked."""

    id: str = "studio"
    able: dict[str, list[str]] = attrs.field(factory=dict)
    answers: list[Any] = attrs.field(factory=list)
    hangs: bool = False
    asked: list[tuple[float, MediaRequest]] = attrs.field(factory=list)
    closed: int = 0

    def models(self, kind: str) -> list[str]:
        return self.able.get(kind, [])

    def wire(self, request: MediaRequest) -> WireRequest:
        return WireRequest("http://studio", {}, request.text.encode())

    async def send(self, request: MediaRequest) -> Any:
        self.asked.append((trio.current_time(), request))
        try:
            await trio.sleep(math.inf if self.hangs else 0)
        finally:
            self.closed += 1
        return self.answers.pop(0) if self.answers else MediaReply(data=b"made")


def all_able(name: str) -> Studio:
    return Studio(name, {kind: [f"{name}-{kind}"] for kind in KINDS})


async def ask(kind: Any, *studios: Studio, **options: Any) -> MediaReply:
    fixed: dict[str, Any] = {"gates": {}, "trace": lambda *_: None, "now": lambda: 0.0}
    return await request_media(kind, studios, **(fixed | options))


@pytest.fixture(autouse=True)
def no_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was sent beside the provider's port")

    monkeypatch.setattr(httpx2.AsyncClient, "__init__", refuse)
    monkeypatch.setattr(httpx2.Client, "__init__", refuse)
    monkeypatch.setattr(trio, "open_tcp_stream", refuse)


@pytest.mark.contract("PER-09")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_model_is_found_by_what_it_can_do(kind: Any) -> None:
    mute = Studio("mute", {"image": ["m"]} if kind != "image" else {"video": ["m"]})
    able = all_able("able")
    reply = await ask(kind, mute, able, text="a boat")
    assert reply.data == b"made"
    assert mute.asked == []
    ((_, request),) = able.asked
    assert (request.kind, request.model, request.text) == (
        kind,
        f"able-{kind}",
        "a boat",
    )
    assert find_media(kind, [mute, able]) == (able, f"able-{kind}")


@pytest.mark.contract("PER-09")
@pytest.mark.parametrize(
    "named",
    [
        {"provider": "mute"},
        {"provider": "nobody"},
        {"model": "able-speech"},
        {"provider": "able", "model": "mute-video"},
    ],
)
async def test_what_lacks_the_capability_is_refused_before_any_call(
    named: dict[str, str],
) -> None:
    mute, able = Studio("mute", {"video": ["mute-video"]}), all_able("able")
    gate, traced = RateGate(RateLimit(0.01)), []
    with pytest.raises(CapabilityError, match="image"):
        await ask(
            "image",
            mute,
            able,
            gates={"able": gate, "mute": gate},
            trace=lambda *told: traced.append(told),
            **named,
        )
    assert (mute.asked, able.asked, traced) == ([], [], [])
    # Nobody's turn was taken, either.
    with trio.fail_after(0):
        await gate.enter(lambda _: None)


@pytest.mark.contract("PER-09")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_failure_is_told_and_never_sent_again(kind: Any) -> None:
    failure = make_failure("come back later", "overloaded", status=503, retryable=True)
    studio = all_able("able")
    studio.answers = [failure, MediaReply(data=b"second")]
    with pytest.raises(ProviderError):
        await ask(kind, studio)
    assert len(studio.asked) == 1


@pytest.mark.contract("CTX-07", "PER-09")
async def test_a_request_of_any_length_is_sent_as_it_is() -> None:
    studio = all_able("able")
    text, data = "word " * 500_000, b"\x00" * 5_000_000
    await ask("transcription", studio, text=text, data=data, media_type="audio/wav")
    ((_, request),) = studio.asked
    assert (request.text, request.data, request.media_type) == (
        text,
        data,
        "audio/wav",
    )


@pytest.mark.contract("PER-09")
async def test_requests_wait_at_the_gate_and_leave_a_trace_each(
    autojump_clock: MockClock,
) -> None:
    studio, traced = all_able("able"), []
    gates = {"able": RateGate(RateLimit(0.5))}

    def trace(provider: str, request: MediaRequest, wire: WireRequest) -> None:
        traced.append((provider, request.kind, wire.body))

    async with trio.open_nursery() as nursery:
        for kind in ("image", "speech"):
            nursery.start_soon(
                lambda kind=kind: ask(kind, studio, text="x", gates=gates, trace=trace)
            )
    first, second = (at for at, _ in studio.asked)
    assert second - first == pytest.approx(2.0)
    assert {kind for _, kind, _ in traced} == {"image", "speech"}
    assert [(provider, body) for provider, _, body in traced] == [("able", b"x")] * 2


@pytest.mark.contract("PER-09")
async def test_a_cancel_ends_a_request_at_once(autojump_clock: MockClock) -> None:
    studio = all_able("able")
    studio.hangs = True
    with trio.move_on_after(1) as scope:
        await ask("video", studio)
    assert scope.cancelled_caught
    assert studio.closed == 1
