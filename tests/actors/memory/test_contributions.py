"""What a turn is told of what its agent remembers, and what that may cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
import trio
from kit.rehearsal import Probe, Stage, open_stage, replies
from kit.skills import system
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.memory import Contributions
from greenroom.engine import Grant
from greenroom.protocol import (
    ACCESS_SECONDS,
    MAX_TURNS,
    Chunk,
    SessionId,
    TextPart,
    UserMessage,
)
from greenroom.testing import Call, Halt, Say

DONE = [Say("done"), Halt()]


@attrs.define(eq=False)
class Memory:
    """A memory that answers as it is told to."""

    text: Any = "The user likes tabs."
    seconds: float = 0.0
    error: Exception | None = None
    stubborn: bool = False
    asked: list[tuple[str, str]] = attrs.field(factory=list[tuple[str, str]])

    async def contribute(
        self, agent_id: str, session_id: SessionId, prompt: str
    ) -> str:
        self.asked.append((agent_id, prompt))
        with trio.CancelScope(shield=self.stubborn):
            await trio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return self.text

    async def extract(
        self, agent_id: str, session_id: SessionId, chunks: Sequence[Chunk]
    ) -> Sequence[Chunk]:
        return ()


def said(request: Any) -> list[str]:
    """The words of the newest user message, part for part."""
    last = [m for m in request.messages if isinstance(m, UserMessage)][-1]
    return [part.text for part in last.parts if isinstance(part, TextPart)]


def manifests(stage: Stage) -> list[dict[str, Any]]:
    return [
        msgspec.json.decode(entry.fact.payload)
        for entry in stage.tape()
        if entry.fact.name == "view/memory_contributed"
    ]


async def enable(stage: Stage, **config: Any) -> None:
    await stage.engine.agents.update("default", {"memoryEnabled": True, **config})


@pytest.mark.contract("SKL-07")
async def test_it_stands_before_the_user_s_words_and_in_no_instruction(
    tmp_path: Path,
) -> None:
    memory = Memory()
    async with open_stage(
        tmp_path, replies(DONE, DONE), memory=memory, system_prompt="Be brief."
    ) as stage:
        await enable(stage)
        await stage.session.prompt("go")
        await stage.session.prompt("again")
        first, second = stage.provider.requests
        (one, two) = manifests(stage)
        messages = await stage.session.messages()
    assert memory.asked == [("default", "go"), ("default", "again")]
    told, words = said(first)
    assert "The user likes tabs." in told
    assert "no instruction" in told
    assert words == "go"
    assert system(first) == system(second) == "Be brief."
    # Said of the turn it was for, and not written into what was said.
    assert one["messageId"] == messages[1].id
    assert (one["state"], one["characters"]) == ("included", 20)
    assert two["messageId"] == messages[3].id
    assert "tabs" not in msgspec.json.encode(messages).decode()


@pytest.mark.contract("SKL-07")
@pytest.mark.parametrize(
    ("memory", "state", "seconds"),
    [
        (Memory(seconds=3.8), "included", 3.8),
        (Memory(seconds=4.1), "late", 3.9),
        (Memory(seconds=60.0, stubborn=True), "late", 3.9),
        (Memory(error=RuntimeError("no")), "failed", 0.0),
        (Memory(text=None), "failed", 0.0),
        (Memory(text=" \x00\n "), "empty", 0.0),
        (Memory(text="x" * 5_000), "cut", 0.0),
    ],
    ids=lambda value: getattr(value, "how", None) or str(value)[:20],
)
async def test_a_turn_begins_by_4_seconds_whatever_memory_does(
    tmp_path: Path,
    autojump_clock: MockClock,
    memory: Memory,
    state: str,
    seconds: float,
) -> None:
    async with open_stage(tmp_path, replies(DONE), memory=memory) as stage:
        await enable(stage)
        began = trio.current_time()
        turn = await stage.session.prompt("go")
        assert turn.outcome == "completed"
        took = trio.current_time() - began
        assert seconds <= took <= min(seconds + 0.1, 4.0)
        (manifest,) = manifests(stage)
        told = said(stage.provider.requests[0])
    assert manifest["state"] == state
    assert told[-1] == "go"
    assert len(told) == (2 if state in ("included", "cut") else 1)
    if state == "cut":
        # 1 000 tokens, where the agent says nothing.
        assert manifest["characters"] == told[0].count("x") == 3_000


@pytest.mark.contract("SKL-07")
async def test_it_is_bounded_by_the_agent_s_tokens_and_clean(tmp_path: Path) -> None:
    memory = Memory(text="a\x00b\x1b[31mc\n" + "d" * 100)
    async with open_stage(tmp_path, replies(DONE, DONE), memory=memory) as stage:
        await enable(stage, memoryInjectionTokenBudget=4)
        await stage.session.prompt("go")
        await enable(stage, memoryInjectionTokenBudget=0)
        await stage.session.prompt("go")
        states = [manifest["state"] for manifest in manifests(stage)]
        told, _ = said(stage.provider.requests[0])
    assert states == ["cut", "empty"]
    body = told.split("\n", 1)[1].split("\n[End")[0]
    assert len(body) == 12
    assert not {"\x00", "\x1b"} & set(told)


@pytest.mark.contract("SKL-07")
async def test_without_the_agent_s_consent_nobody_is_asked(tmp_path: Path) -> None:
    memory = Memory()
    async with open_stage(tmp_path, replies(DONE), memory=memory) as stage:
        await stage.session.prompt("go")
        assert (memory.asked, manifests(stage)) == ([], [])
        assert said(stage.provider.requests[0]) == ["go"]


async def test_a_turn_that_goes_on_after_a_pause_is_told_the_same_once(
    tmp_path: Path,
) -> None:
    memory = Memory()
    ask = [Call("probe", {"n": 1}), Halt("tool_use")]
    asks = Probe(permission="do it")
    async with open_stage(tmp_path, replies(ask, DONE), asks, memory=memory) as stage:
        await enable(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            memory.text = "Something else."
            (waits,) = await stage.session.interactions()
            await stage.session.answer(waits.id, Grant())
        first, second = stage.provider.requests
        assert len(manifests(stage)) == 1
    assert len(memory.asked) == 1
    assert said(first) == said(second)


async def test_a_cancel_does_not_wait_for_memory(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_stage(tmp_path, replies(DONE), memory=Memory(seconds=3.0)) as stage:
        await enable(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            began = trio.current_time()
            await stage.session.cancel()
            assert trio.current_time() - began < 0.1


@pytest.mark.contract("SKL-08")
async def test_what_turns_were_told_is_known_for_a_time_and_of_so_many(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    memory = Memory()
    async with open_stage(tmp_path, [], memory=memory) as stage:
        await enable(stage)
        contributions = stage.engine._world.contribute
        assert isinstance(contributions, Contributions)

        def plan(name: str) -> Any:
            loaded = stage.session._sessions.loaded(stage.session.id)
            assert loaded is not None
            return _Plan(name, stage.session.id, loaded.session.settings)

        for name in ("a", "a"):
            await contributions(plan(name))
        assert len(memory.asked) == 1
        await trio.sleep(ACCESS_SECONDS + 1)
        await contributions(plan("a"))
        assert len(memory.asked) == 2
        for number in range(MAX_TURNS):
            await contributions(plan(f"m{number}"))
        assert len(contributions._told) == MAX_TURNS
        await contributions(plan("a"))
        assert len(memory.asked) == 2 + MAX_TURNS + 1


@attrs.frozen
class _Named:
    id: str


@attrs.frozen
class _Messages:
    messages: tuple[Any, ...] = ()


@attrs.frozen
class _Plan:
    name: str
    session_id: str
    settings: Any
    view: Any = _Messages()

    @property
    def message(self) -> Any:
        return _Named(self.name)
