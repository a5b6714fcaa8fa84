"""What a read through the engine costs, and how one message is followed by its ids."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from kit.gateway import connected, served
from kit.rehearsal import Probe, open_stage, read_tape, replies

from greenroom.actors.providers import Call, Halt, RehearsalProvider, Say
from greenroom.engine import open_engine
from greenroom.protocol import (
    AttemptTrace,
    DispatchCommitted,
    MessageId,
    RunStarted,
    RunTerminal,
    SessionId,
    TapeEntry,
    ToolOutcome,
)
from greenroom.storage import Piece, Trail, endpoint_fact, open_reader, open_store

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


@pytest.mark.contract("PER-08")
async def test_a_prompt_is_collected_at_every_hop_by_the_id_of_its_message(
    tmp_path: Path,
) -> None:
    rounds = replies(ASK, DONE, DONE)
    async with open_stage(tmp_path, rounds, Probe()) as stage:
        session = stage.session
        await session.prompt("go", command_id="the-input", endpoint="gateway 7")
        await session.prompt("and another")
        user, answer, other, _ = await session.messages()
        hops = await session.hops(answer.id)
        assert hops == await session.hops(user.id)
        traces = await session.traces(answer.id)
        assert await session.hops("no such message") == []
    begins = "endpoint input message input message run"
    expected = f"{begins} request attempt tool tool tool tool"
    assert [hop.hop for hop in hops] == [
        *expected.split(),
        *("request", "attempt", "end", "message"),
    ]
    # Each of them has the three ids, and all of them are the same turn's.
    assert {hop.session_id for hop in hops} == {session.id}
    assert {hop.message_id for hop in hops} == {user.id, answer.id}
    assert {hop.run_id for hop in hops} == {answer.metadata.run_id}
    assert hops[0].detail == "gateway 7"
    assert {trace.run_id for trace in traces} == {answer.metadata.run_id}
    assert [trace.message_id for trace in traces] == [answer.id, answer.id]
    assert other.id not in {hop.message_id for hop in hops}


@pytest.mark.contract("PER-08")
async def test_a_client_reads_traces_and_their_end_leaves_every_hop(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, replies(ASK, DONE), Probe()) as stage:
        await stage.session.prompt("go")
        _, answer = before = await stage.session.messages()
        hops = await stage.session.hops(answer.id)
        assert len(await stage.session.traces()) == 2
        await stage.engine._world.writer.submit(
            Piece(lambda store: store.forget_traces(1e12))
        )
        assert await stage.session.traces(answer.id) == []
        assert await stage.session.messages() == before
        assert await stage.session.hops(answer.id) == hops


@pytest.mark.contract("PER-08")
async def test_what_came_through_a_gateway_has_it_as_its_first_hop(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, replies(DONE, DONE, DONE)) as stage:
        scope = stage.session.id
        async with served(stage.engine) as gateway, connected(gateway) as client:
            sent = await client.call(
                "_greenroom/prompt", sessionId=scope, content="one", commandId="c-1"
            )
            queued = await client.call(
                "_greenroom/queue", sessionId=scope, content="two", commandId="c-2"
            )
        # Let in behind what was queued.
        await stage.session.prompt("three")
        hops = [await stage.session.hops(each) for each in (sent["messageId"], "c-2")]
    assert queued["inputId"] == "c-2"
    assert [(told[0].hop, told[0].detail) for told in hops] == [
        ("endpoint", "gateway")
    ] * 2
    assert hops[0][0].message_id == "c-1"
    assert hops[0][0].run_id == hops[0][-1].run_id is not None


async def test_an_input_that_waited_is_a_hop_of_its_turn(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replies(DONE, DONE, DONE)) as stage:
        await stage.session.prompt("go")
        await stage.session.queue("then", command_id="queued")
        await stage.session.prompt("last")
        hops = await stage.session.hops("queued")
        answer = (await stage.session.messages())[3]
    told = [hop.hop for hop in hops]
    assert told[0] == "input"
    assert told[-1] in ("message", "input")
    assert {"run", "attempt", "end"} <= set(told)
    assert {hop.message_id for hop in hops} == {"queued", answer.id}


async def test_a_payload_that_cannot_be_read_says_less_and_stops_nothing(
    tmp_path: Path,
) -> None:
    trail = Trail(frozenset({"m"}))
    good = endpoint_fact(MessageId("m"), "gate\ud800way", "", at=1.0)
    for seq, payload in enumerate((good.payload, "[]", '{"endpoint":5}', "[" * 5_000)):
        fact = msgspec.structs.replace(good, payload=payload)
        trail.take(
            [
                TapeEntry(
                    session_id=SessionId("s"), seq=seq, token=1, fact=fact, created_at=2
                )
            ]
        )
    assert [hop.detail for hop in trail.hops][1:] == ["", "", ""]
    assert {hop.run_id for hop in trail.hops} == {None}
