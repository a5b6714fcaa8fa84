"""Every interaction ends once, and whoever watches is told, whatever ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio
from kit.rehearsal import Probe, Stage, calls_of, open_stage, read_tape, replies
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.kernel import CancelCause
from greenroom.actors.providers import Call, Halt, Hang, Say
from greenroom.actors.sessions import CancelTurn
from greenroom.engine import (
    Deny,
    Grant,
    Question,
    Reply,
    SessionClosedError,
    TurnRefusedError,
)
from greenroom.protocol import (
    InteractionError,
    InteractionSettled,
    Other,
    QuestionOption,
    StatusChanged,
    ToolMessage,
    events_of,
)
from greenroom.storage import message_fact

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]
TWO = [Call("probe", {"n": 1}), Call("probe", {"n": 2}), Halt("tool_use")]
QUESTION = Question("Which?", "Which", (QuestionOption("red"), QuestionOption("blue")))


@attrs.define(eq=False)
class Watcher:
    """A client that follows the session and notes how its prompts ended."""

    ends: list[tuple[str, str]] = attrs.field(factory=list)

    async def watch(
        self, stage: Stage, *, task_status: Any = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with stage.session.follow() as feed:
            task_status.started()
            async for event in feed:
                if isinstance(event, InteractionSettled):
                    self.ends.append((event.interaction_id, event.end))


@asynccontextmanager
async def two_clients(stage: Stage) -> AsyncIterator[tuple[Watcher, Watcher]]:
    clients = Watcher(), Watcher()
    async with trio.open_nursery() as nursery:
        for client in clients:
            await nursery.start(client.watch, stage)
        yield clients
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def prompt(stage: Stage, ended: list[Any]) -> None:
    try:
        ended.append(await stage.session.prompt("go"))
    except SessionClosedError as exc:
        ended.append(exc)


def ends_on_tape(stage: Stage, session_id: str | None = None) -> list[tuple[str, str]]:
    entries = read_tape(stage.state, session_id or stage.session.id)
    return [
        (event.interaction_id, event.end)
        for entry in entries
        for event in events_of(entry)
        if isinstance(event, InteractionSettled)
    ]


async def granted(stage, asked):
    await stage.session.answer(asked.id, Grant())


async def denied(stage, asked):
    await stage.session.answer(asked.id, Deny("no"))


async def cancelled(stage, asked):
    await stage.session.cancel()


async def closed(stage, asked):
    await stage.session.close()


async def process_exit(stage, asked):
    loaded = stage.session._sessions.loaded(stage.session.id)
    loaded.ref.tell_control(CancelTurn(CancelCause.PROCESS_EXIT), key="exit")


async def expired(stage, asked):
    await trio.sleep(61)


@pytest.mark.contract("INT-14")
@pytest.mark.parametrize(
    ("leave", "end"),
    [
        (granted, "granted"),
        (denied, "denied"),
        (cancelled, "cancelled"),
        (closed, "closed"),
        (process_exit, "process_exit"),
        (expired, "expired"),
    ],
)
async def test_each_way_out_of_a_permission_is_told_once_to_both_clients(
    tmp_path, autojump_clock: MockClock, leave, end
):
    probe = Probe(permission="?")
    async with open_stage(
        tmp_path, replies(ASK, DONE), probe, permission_seconds=60.0
    ) as stage:
        ended: list[Any] = []
        async with two_clients(stage) as clients, trio.open_nursery() as nursery:
            nursery.start_soon(prompt, stage, ended)
            await wait_all_tasks_blocked()
            (asked,) = await stage.session.interactions()
            await leave(stage, asked)
        assert [client.ends for client in clients] == [[(asked.id, end)]] * 2
        assert ends_on_tape(stage) == [(asked.id, end)]
        assert await stage.session.interactions() == ()
        assert len(ended) == 1


@pytest.mark.contract("INT-14")
@pytest.mark.parametrize(
    ("loaded", "steers"), [(True, []), (False, []), (False, ["Hurry."])]
)
async def test_a_deletion_is_told_once_to_both_clients(tmp_path, loaded, steers):
    async with (
        open_stage(tmp_path, replies(ASK), Probe(permission="?")) as stage,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(prompt, stage, [])
        await wait_all_tasks_blocked()
        (asked,) = await stage.session.interactions()
        for said in steers:
            await stage.session.steer(said)
        if not loaded:
            # Whoever prompted has gone away; the question stays.
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await unload(stage)
        with trio.CancelScope(shield=True):
            async with two_clients(stage) as clients:
                await stage.engine.delete_session(stage.session.id)
            ends = [client.ends for client in clients]
            assert [[item for item, _ in told] for told in ends] == [[asked.id]] * 2
            assert await stage.session.interactions() == ()


async def unload(stage: Stage) -> None:
    await wait_all_tasks_blocked()
    found = stage.session._sessions.loaded(stage.session.id)
    assert found is not None
    found.ref.stop(CancelCause.SHUTDOWN)
    await found.ref.wait_exited()


@pytest.mark.contract("INT-14")
@pytest.mark.parametrize(
    ("answer", "end"),
    [(Reply("red"), "answered"), (Other(), "answered"), (Deny(), "denied")],
)
async def test_each_answer_to_a_question_is_told_once(tmp_path, answer, end):
    script = replies(ASK, DONE)
    async with open_stage(tmp_path, script, Probe(question=QUESTION)) as stage:
        ended: list[Any] = []
        async with two_clients(stage) as clients, trio.open_nursery() as nursery:
            nursery.start_soon(prompt, stage, ended)
            await wait_all_tasks_blocked()
            (asked,) = await stage.session.interactions()
            await stage.session.answer(asked.id, answer)
        assert [client.ends for client in clients] == [[(asked.id, end)]] * 2


async def test_all_that_wait_end_when_the_turn_is_cancelled(tmp_path):
    async with open_stage(tmp_path, replies(TWO), Probe(permission="?")) as stage:
        ended: list[Any] = []
        async with two_clients(stage) as clients, trio.open_nursery() as nursery:
            nursery.start_soon(prompt, stage, ended)
            await wait_all_tasks_blocked()
            first, second = await stage.session.interactions()
            await stage.session.cancel()
        told = [(first.id, "cancelled"), (second.id, "cancelled")]
        assert [client.ends for client in clients] == [told] * 2


@pytest.mark.parametrize(
    ("cause", "end"),
    [
        (CancelCause.USER_STOP, "cancelled"),
        (CancelCause.PROCESS_EXIT, "process_exit"),
        (CancelCause.SHUTDOWN, "closed"),
    ],
)
async def test_a_run_that_is_cancelled_before_it_pauses_settles_what_it_asked(
    tmp_path, cause, end
):
    asking = Probe(name="asking", permission="?")
    held = Probe(name="held", gate=trio.Event())
    calls = [Call("asking", {"n": 1}), Call("held", {"n": 1}), Halt("tool_use")]
    async with open_stage(tmp_path, replies(calls), asking, held) as stage:
        ended: list[Any] = []
        async with two_clients(stage) as clients, trio.open_nursery() as nursery:
            nursery.start_soon(prompt, stage, ended)
            await held.reached.wait()
            loaded = stage.session._sessions.loaded(stage.session.id)
            assert loaded is not None
            assert loaded.session.turn is not None
            assert loaded.session.turn.ref is not None
            loaded.session.turn.ref.cancel(cause)
        ends = [client.ends for client in clients]
        assert [[word for _, word in told] for told in ends] == [[end]] * 2


@pytest.mark.contract("INT-14")
async def test_a_restart_settles_what_a_turn_asked_that_can_not_go_on(tmp_path):
    asking = Probe(name="asking", permission="?")
    held = Probe(name="held", gate=trio.Event())
    calls = [Call("asking", {"n": 1}), Call("held", {"n": 1}), Halt("tool_use")]
    async with open_stage(tmp_path, replies(calls), asking, held) as stage:
        session_id = stage.session.id
        loaded = stage.session._sessions.loaded(session_id)
        assert loaded is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt, stage, [])
            await held.reached.wait()
            # As a crash leaves it: the question is kept, the run has no terminal.
            turn = loaded.session.turn
            assert turn is not None
            assert turn.active is not None
            (question,) = turn.active.draft.unresolved
            await loaded.session.ports.record.append(
                [_revision(turn.active.plan.message, turn.active.draft.blocks)]
            )
            loaded.session.ports.record.tape.head += 1_000
            nursery.cancel_scope.cancel()
    assert ends_on_tape(stage, session_id) == [(question.id, "interrupted")]
    async with open_stage(tmp_path, replies(DONE), session_id=session_id) as stage:
        assert await stage.session.interactions() == ()
        assert (await stage.session.prompt("next")).text == "done"


def _revision(message, blocks):
    return message_fact(msgspec.structs.replace(message, blocks=blocks))


#### Clocks


@pytest.mark.parametrize("kind", ["permission", "question"])
async def test_nobody_is_blamed_when_nobody_answers(
    tmp_path, autojump_clock: MockClock, kind
):
    probe = Probe(permission="?") if kind == "permission" else Probe(question=QUESTION)
    seconds: dict[str, Any] = {f"{kind}_seconds": 60.0}
    async with open_stage(tmp_path, replies(ASK, DONE), probe, **seconds) as stage:
        turn = await stage.session.prompt("go")
        assert trio.current_time() == pytest.approx(60)
        assert turn.text == "done"
        told = stage.provider.requests[1].messages[-1]
        assert isinstance(told, ToolMessage)
        assert "nobody answered" in told.text
        assert "did not refuse" in told.text
        assert told.is_error
        assert probe.calls == []


async def test_without_a_clock_an_interaction_waits_for_ever(
    tmp_path, autojump_clock: MockClock
):
    script = replies(ASK, DONE)
    async with (
        open_stage(tmp_path, script, Probe(permission="?")) as stage,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(prompt, stage, [])
        await trio.sleep(80_000)
        (asked,) = await stage.session.interactions()
        assert asked.expires_at is None
        await stage.session.cancel()


async def test_an_answer_that_comes_too_late_is_told_so(
    tmp_path, autojump_clock: MockClock
):
    script = replies(ASK, [Hang()])
    async with open_stage(
        tmp_path, script, Probe(permission="?"), permission_seconds=60.0
    ) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt, stage, [])
            await wait_all_tasks_blocked()
            (asked,) = await stage.session.interactions()
            await trio.sleep(61)
            loaded = stage.session._sessions.loaded(stage.session.id)
            assert loaded is not None
            await stage.session.cancel()
        with pytest.raises((InteractionError, TurnRefusedError)):
            await stage.session.answer(asked.id, Grant())


async def test_each_interaction_has_its_time_from_when_it_is_next(
    tmp_path, autojump_clock: MockClock
):
    probe = Probe(permission="?")
    async with open_stage(
        tmp_path, replies(TWO, DONE), probe, permission_seconds=60.0
    ) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt, stage, [])
            await trio.sleep(50)
            first, second = await stage.session.interactions()
            assert second.expires_at is None
            await stage.session.answer(first.id, Deny())
            # The first one's clock stops with its answer.
            await trio.sleep(50)
            assert [a.id for a in await stage.session.interactions()] == [second.id]
            await trio.sleep(11)
            assert await stage.session.interactions() == ()
        assert [end for _, end in ends_on_tape(stage)] == ["denied", "expired"]


async def test_the_status_says_how_long_an_answer_is_waited_for(
    tmp_path, autojump_clock: MockClock
):
    async with (
        open_stage(
            tmp_path, replies(ASK, DONE), Probe(permission="?"), permission_seconds=60.0
        ) as stage,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(prompt, stage, [])
        await trio.sleep(20)
        async with stage.session.follow() as feed:
            async for event in feed:
                assert isinstance(event, StatusChanged)
                assert event.waiting_for == "permission"
                assert event.remaining == pytest.approx(40)
                break
        await stage.session.cancel()


@pytest.mark.parametrize("away", [10.0, 100.0])
async def test_the_time_to_answer_goes_on_while_no_engine_runs(
    tmp_path, autojump_clock: MockClock, away
):
    probe = Probe(permission="?")
    async with open_stage(
        tmp_path, replies(ASK), probe, permission_seconds=60.0
    ) as stage:
        session_id = stage.session.id
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt, stage, [])
            await trio.sleep(30)
            nursery.cancel_scope.cancel()
    await trio.sleep(away)
    script = replies(DONE)
    async with open_stage(tmp_path, script, probe, session_id=session_id) as stage:
        if away < 30:
            await trio.sleep(30 - away - 1)
            assert len(await stage.session.interactions()) == 1
            await trio.sleep(2)
        await wait_all_tasks_blocked()
        assert await stage.session.interactions() == ()
        assert [end for _, end in ends_on_tape(stage)] == ["expired"]
        (_, message) = await stage.session.messages()
        (call,) = calls_of(message)
        assert call.status == "error"


@pytest.mark.parametrize("wrong", [0.0, -1.0, 1e12])
async def test_a_clock_that_is_none_is_refused(tmp_path, wrong):
    async with open_stage(tmp_path, replies()) as stage:
        with pytest.raises(TurnRefusedError) as refused:
            await stage.session.configure(question_seconds=wrong)
        assert refused.value.code == "wrong_setting"
