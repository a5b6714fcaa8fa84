"""What is taken in behind turns: when, for whom, and never against a later will."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from kit.rehearsal import Probe, Stage, open_stage, replies
from kit.stores import bootstrap
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.protocol import COOLDOWN_SECONDS, DRAIN_SECONDS, Chunk, SessionId
from greenroom.storage import Appended, Piece, open_reader
from greenroom.testing import (
    Call,
    Fail,
    Halt,
    Hang,
    RehearsalProvider,
    Say,
    open_test_engine,
)

DONE = [Say("the sky is blue"), Halt()]


@attrs.define(eq=False)
class Extractor:
    """A memory whose extraction waits, fails or hangs as it is told."""

    gate: trio.Event | None = None
    error: Exception | None = None
    stubborn: bool = False
    asked: list[tuple[str, list[str]]] = attrs.field(
        factory=list[tuple[str, list[str]]]
    )

    async def contribute(
        self, agent_id: str, session_id: SessionId, prompt: str
    ) -> str:
        return ""

    async def extract(
        self, agent_id: str, session_id: SessionId, chunks: Sequence[Chunk]
    ) -> Sequence[Chunk]:
        self.asked.append((agent_id, [chunk.text for chunk in chunks]))
        with trio.CancelScope(shield=self.stubborn):
            if self.gate is not None:
                await self.gate.wait()
        if self.error is not None:
            raise self.error
        return chunks


async def enable(stage: Stage, agent: str = "default") -> None:
    await stage.engine.agents.update(agent, {"memoryEnabled": True})


async def remembered(stage: Stage, agent: str = "default") -> list[str]:
    await wait_all_tasks_blocked()
    readers = stage.engine.skills._readers
    found = await readers.read(lambda reader: reader.recollections(agent))
    return [each.text for each in found]


async def say(stage: Stage, times: int = 3) -> None:
    """Have so many plain turns, two messages each."""
    for _ in range(times):
        await stage.session.prompt("what is the sky like?")


@pytest.mark.contract("SKL-08")
async def test_plain_talk_is_taken_in_from_six_new_messages_on(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replies(*[DONE] * 6)) as stage:
        await enable(stage)
        await say(stage, 2)
        assert await remembered(stage) == []
        await say(stage, 1)
        (first,) = await remembered(stage)
        assert first.count("the sky is blue") == 3
        await say(stage, 2)
        assert await remembered(stage) == [first]
        await say(stage, 1)
        second, _ = await remembered(stage)
        # What was taken in before is not taken in again.
        assert second.count("the sky is blue") == 3
        readers = stage.engine.skills._readers
        mark = await readers.read(lambda r: r.ingest_mark("default", stage.session.id))
        assert mark.cursor == 12


@attrs.define(eq=False)
class SlowSettlement:
    """A session's record that takes its time to settle a claim."""

    inner: Any
    gate: trio.Event = attrs.field(factory=trio.Event)
    reached: trio.Event = attrs.field(factory=trio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def append(self, facts: Any, *args: Any, **kwargs: Any) -> None:
        ends = ('"state":"consumed"', '"returned":true')
        if any(end in fact.payload for fact in facts for end in ends):
            self.reached.set()
            await self.gate.wait()
        await self.inner.append(facts, *args, **kwargs)


@pytest.mark.contract("PIN-11", "SKL-08")
@pytest.mark.parametrize("fails", [True, False])
async def test_a_queued_turn_is_taken_in_when_its_claim_is_settled(
    tmp_path: Path, fails: bool
) -> None:
    queued = [Say("half of it"), Fail("no", status=400)] if fails else DONE
    async with open_stage(tmp_path, replies(DONE, DONE, queued, DONE)) as stage:
        await enable(stage)
        await say(stage, 2)
        loaded = stage.session._sessions.loaded(stage.session.id)
        assert loaded is not None
        slow = SlowSettlement(loaded.session.ports.record)
        loaded.session.ports = attrs.evolve(loaded.session.ports, record=slow)
        await stage.session.queue("the secret word", command_id="q")
        await slow.reached.wait()
        assert await remembered(stage) == []
        # Nor is it by a task that was late.
        stage.engine._world.turn_settled(stage.session.id, loaded.session.settings)
        assert await remembered(stage) == []
        slow.gate.set()
        if fails:
            # Taken back: it is not remembered, and its places are free again.
            assert await remembered(stage) == []
            await stage.session.delete_input("q")
            await say(stage, 1)
        (text,) = await remembered(stage)
        assert text.count("the sky is blue") == 3
        assert ("secret" in text) == (not fails)


@pytest.mark.contract("SKL-08")
async def test_work_with_tools_is_taken_in_at_once_and_found_by_the_next_session(
    tmp_path: Path,
) -> None:
    work = [Say("w" * 160), Call("probe", {"n": 1}), Halt("tool_use")]
    script = replies(work, DONE, DONE)
    async with open_stage(tmp_path, script, Probe()) as stage:
        await enable(stage)
        await stage.session.prompt("tell me of the sky")
        assert len(await remembered(stage)) == 1
        other = await stage.engine.create_session(workspace=tmp_path)
        await other.prompt("what colour has the sky?")
        last: Any = stage.provider.requests[-1].messages[-1]
        words = [part.text for part in last.parts]
    assert "the sky is blue" in words[0]
    assert words[1] == "what colour has the sky?"


@pytest.mark.contract("SKL-08")
async def test_each_agent_remembers_its_own_and_only_where_it_is_to(
    tmp_path: Path,
) -> None:
    extractor = Extractor()
    async with open_stage(tmp_path, replies(*[DONE] * 6), memory=extractor) as stage:
        other = await stage.engine.agents.create("Other")
        await enable(stage, other)
        await say(stage)
        session = await stage.engine.create_session(agent=other, workspace=tmp_path)
        for _ in range(3):
            await session.prompt("go")
        assert await remembered(stage) == []
        assert len(await remembered(stage, other)) == 1
    assert [agent for agent, _ in extractor.asked] == [other]


@pytest.mark.contract("SKL-08")
async def test_a_compaction_is_an_occasion_too(tmp_path: Path) -> None:
    summary = [Say("## Goal\nlook up"), Halt()]
    script = replies(*[[Say("blue " * 400), Halt()]] * 3, summary)
    async with open_stage(tmp_path, script) as stage:
        await say(stage)
        await enable(stage)
        assert await remembered(stage) == []
        done = await stage.session.compact()
        assert done.outcome == "summarized"
        assert len(await remembered(stage)) == 1


@pytest.mark.contract("SKL-08")
async def test_a_turn_that_goes_on_is_taken_in_when_it_has_settled(
    tmp_path: Path,
) -> None:
    # Its first round is on the tape while the second one goes on.
    late = [Say("the sea is deep"), Call("probe", {"n": 1}), Halt("tool_use")]
    script = replies(*[DONE] * 3, late, [Hang()])
    async with open_stage(tmp_path, script, Probe()) as stage:
        await say(stage)
        await enable(stage)
        readers, settings = stage.engine.skills._readers, stage.session.settings
        assert settings is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "and the sea?")
            await wait_all_tasks_blocked()
            stage.engine._world.turn_settled(stage.session.id, settings)
            (text,) = await remembered(stage)
            mark = await readers.read(
                lambda r: r.ingest_mark("default", stage.session.id)
            )
            await stage.session.cancel()
        assert "the sea is deep" not in text
        assert mark.cursor == 7
        # It settled, and is new to the next task.
        _, _, _, _, _, _, _, last = await stage.session.messages()
        assert last.order_seq == 8


async def test_a_flood_of_turns_is_turned_away_with_one_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("go")
        await wait_all_tasks_blocked()
        settings = stage.session.settings
        assert settings is not None
        for number in range(5_000):
            told = stage.engine._world.turn_settled
            told(SessionId(f"s{number}"), settings)
        assert caplog.text.count("memory is behind") == 1


@pytest.mark.contract("SKL-08")
async def test_what_is_said_after_a_rewind_is_taken_in(tmp_path: Path) -> None:
    anew = [Say("the sea is green"), Halt()]
    async with open_stage(tmp_path, replies(*[DONE] * 3, *[anew] * 3)) as stage:
        await enable(stage)
        await say(stage, 3)
        assert len(await remembered(stage)) == 1
        await stage.session.rewind(None)
        await say(stage, 3)
        newest, _ = await remembered(stage)
        assert newest.count("the sea is green") == 3
        assert "the sky is blue" not in newest


@pytest.mark.contract("SKL-08")
@pytest.mark.parametrize("what", ["session cleared", "agent forgets", "nothing"])
async def test_what_was_begun_before_a_clearing_is_not_kept(
    tmp_path: Path, what: str
) -> None:
    extractor = Extractor(gate=trio.Event())
    async with open_stage(tmp_path, replies(*[DONE] * 3), memory=extractor) as stage:
        await enable(stage)
        await say(stage)
        await wait_all_tasks_blocked()
        assert len(extractor.asked) == 1
        loaded = stage.session._sessions.loaded(stage.session.id)
        assert loaded is not None
        tape: Any = loaded.session.ports.record.tape

        def clear(store: Any) -> Any:
            if what == "agent forgets":
                return store.forget_recollections("default")
            facts = bootstrap(stage.session.id)
            return store.reset(tape.grant, tape.head, facts, now=1.0)

        if what != "nothing":
            done = await stage.engine.skills._writer.submit(Piece(clear))
            assert done == 0 or isinstance(done, Appended)
        assert extractor.gate is not None
        extractor.gate.set()
        assert len(await remembered(stage)) == (1 if what == "nothing" else 0)
        readers = stage.engine.skills._readers
        mark = await readers.read(lambda r: r.ingest_mark("default", stage.session.id))
        assert mark.cursor == (6 if what == "nothing" else 0)


@pytest.mark.contract("SKL-08")
@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_job_that_is_stuck_holds_the_end_up_for_its_bound_at_most(
    tmp_path: Path,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    stubborn: bool,
) -> None:
    extractor = Extractor(gate=trio.Event(), stubborn=stubborn)
    provider = RehearsalProvider(replies(*[DONE] * 3))
    async with open_test_engine(tmp_path, provider, memory=extractor) as engine:
        await engine.agents.update("default", {"memoryEnabled": True})
        session = await engine.create_session(workspace=tmp_path)
        for _ in range(3):
            await session.prompt("go")
        await wait_all_tasks_blocked()
        assert len(extractor.asked) == 1
        began = trio.current_time()
    took = trio.current_time() - began
    assert extractor.gate is not None
    # First, for the task that was left behind would hold up the test's own end.
    extractor.gate.set()
    await wait_all_tasks_blocked()
    # What does not even end when it is cancelled is the system's to report and leave,
    # within the bound that it has for all such.
    assert took <= DRAIN_SECONDS + (2.5 if stubborn else 0.2)


@pytest.mark.contract("SKL-08")
async def test_what_was_begun_is_finished_at_the_end(tmp_path: Path) -> None:
    extractor = Extractor(gate=trio.Event())
    provider = RehearsalProvider(replies(*[DONE] * 3))
    async with open_test_engine(tmp_path, provider, memory=extractor) as engine:
        await engine.agents.update("default", {"memoryEnabled": True})
        session = await engine.create_session(workspace=tmp_path)
        for _ in range(3):
            await session.prompt("go")
        await wait_all_tasks_blocked()
        assert extractor.gate is not None
        # The gate opens when the end has begun.
        trio.lowlevel.spawn_system_task(_open_later, extractor.gate)
    reader = open_reader(engine.state)
    try:
        assert len(reader.recollections("default")) == 1
    finally:
        reader.close()


async def _open_later(gate: trio.Event) -> None:
    for _ in range(50):
        await trio.lowlevel.checkpoint()
    gate.set()


@pytest.mark.contract("SKL-08")
async def test_after_a_failure_nothing_is_tried_for_30_seconds(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    extractor = Extractor(error=RuntimeError("no"))
    async with open_stage(tmp_path, replies(*[DONE] * 5), memory=extractor) as stage:
        await enable(stage)
        await say(stage)
        assert await remembered(stage) == []
        extractor.error = None
        await trio.sleep(COOLDOWN_SECONDS - 0.1)
        await say(stage, 1)
        assert await remembered(stage) == []
        assert len(extractor.asked) == 1
        await trio.sleep(0.2)
        await say(stage, 1)
        (text,) = await remembered(stage)
    # Nothing was lost by waiting.
    assert text.count("the sky is blue") == 5
    assert "RuntimeError: no" in caplog.text
