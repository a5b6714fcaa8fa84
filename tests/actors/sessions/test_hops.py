"""What a read through the engine costs, and how one message is followed by its ids."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
from kit.rehearsal import Probe, open_stage, read_tape, replies

from greenroom.actors.providers import Call, Halt, RehearsalProvider, Say
from greenroom.engine import open_engine
from greenroom.protocol import (
    AttemptTrace,
    DispatchCommitted,
    RunStarted,
    RunTerminal,
    SessionId,
    TapeEntry,
    ToolOutcome,
)
from greenroom.storage import open_reader, open_store

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


async def test_a_read_through_the_engine_is_one_hop_and_decodes_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hops: list[Any] = []
    run_sync = trio.to_thread.run_sync

    async def counted(*args: Any, **kwargs: Any) -> Any:
        result = await run_sync(*args, **kwargs)
        hops.append(result)
        return result

    provider = RehearsalProvider(replies(DONE))
    async with open_engine(state=tmp_path / "state", provider=provider) as engine:
        session = await engine.create_session(workspace=tmp_path)
        await session.prompt("look for the lighthouse")
        await engine._world.writer.flush()  # type: ignore[attr-defined]
        monkeypatch.setattr(trio.to_thread, "run_sync", counted)
        found = [
            await engine.sessions(),
            await session.messages(),
            await engine.search("lighthouse"),
        ]
        monkeypatch.undo()
    assert [len(rows) for rows in found] == [1, 2, 1]
    # One hop each, and what it brought is what is returned.
    assert len(hops) == 3
    assert all(got is brought for got, brought in zip(found, hops, strict=True))


#### Following a message


def names(entries: list[TapeEntry], *ids: str) -> set[str]:
    """Names of the facts that carry one of *ids*."""
    return {
        entry.fact.name
        for entry in entries
        if any(i in f"{entry.fact.source_id} {entry.fact.payload}" for i in ids)
    }


async def test_a_message_is_found_at_every_hop_by_its_id(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replies(ASK, DONE), Probe()) as stage:
        await stage.session.prompt("go", command_id="the-input")
        scope = SessionId(stage.session.id)
        user, answer = await stage.session.messages()
        journal, tape = stage.journal(), stage.tape()
        with closing(open_reader(stage.state)) as reader:
            traces = reader.traces(scope, answer.id)
            (run,) = {trace.run_id for trace in traces}
            assert reader.run_session(run) == scope
    # From the input on: the user's message has its id, the answer comes behind it.
    assert user.id == "the-input"
    assert answer.metadata.run_id == run
    assert {entry.session_id for entry in tape} == {scope}
    # The run, its attempts, what they sent, and its calls.
    assert {"execution/run_started", "provider/attempt_completed"} <= names(
        tape, answer.id
    )
    assert {"view/assembled", "tool/called", "tool/settled"} <= names(tape, answer.id)
    assert [trace.request_seq for trace in traces] == [1, 2]
    assert all(isinstance(trace, AttemptTrace) for trace in traces)
    (started,) = [r for r in journal if isinstance(r, RunStarted)]
    (dispatched,) = [r for r in journal if isinstance(r, DispatchCommitted)]
    (outcome,) = [r for r in journal if isinstance(r, ToolOutcome)]
    (ended,) = [r for r in journal if isinstance(r, RunTerminal)]
    assert started.message_id == answer.id
    assert {dispatched.operation.run_id, outcome.operation.run_id} == {run}
    assert ended.run_id == started.run_id == run


async def test_traces_that_are_forgotten_leave_the_message_as_it_was(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, replies(ASK, DONE), Probe()) as stage:
        await stage.session.prompt("go")
        scope, before = SessionId(stage.session.id), await stage.session.messages()
        tape = stage.tape()
    with closing(open_store(tmp_path / "state")) as store:
        assert store.forget_traces(1e12) == 2
        assert store.traces(scope) == []
        assert store.messages(scope) == before
    assert read_tape(tmp_path / "state", scope) == tape
