"""A command that is sent again, taken back, unreadable or without a provider."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from kit.rehearsal import Probe, Stage, open_stage, replies, spy_on
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.kernel import CancelCause
from greenroom.actors.providers import Call, Halt, Hang, RehearsalProvider, Say
from greenroom.engine import (
    Deny,
    Grant,
    SessionClosedError,
    TurnFailedError,
    TurnRefusedError,
)
from greenroom.protocol import (
    DiskFullError,
    PromptCommand,
    SessionId,
    TextPart,
    canonical_json,
)
from greenroom.storage import open_store

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


@attrs.define(eq=False)
class Prompts:
    """Prompts in the background, and how each ended, in that order."""

    stage: Stage
    ended: list[str] = attrs.field(factory=list)

    async def send(self, text="go", command_id=""):
        try:
            turn = await self.stage.session.prompt(text, command_id=command_id)
            self.ended.append(turn.text or turn.stop_reason)
        except (TurnRefusedError, TurnFailedError, SessionClosedError) as exc:
            self.ended.append(exc.code)


def post(stage, body, command_id="command"):
    store = open_store(stage.state)
    store.post(SessionId(stage.session.id), command_id, body, now=0.0)
    store.close()


async def test_a_command_that_was_taken_back_is_refused_when_it_is_sent_again(tmp_path):
    async with open_stage(tmp_path, replies([Hang()], DONE)) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "first")
            await wait_all_tasks_blocked()
            async with trio.open_nursery() as waiting:
                waiting.start_soon(Prompts(stage).send, "second", "again")
                await wait_all_tasks_blocked()
                waiting.cancel_scope.cancel()
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        with pytest.raises(TurnRefusedError) as refused:
            await stage.session.prompt("second", command_id="again")
        assert refused.value.code == "withdrawn_command"
        assert (await stage.session.prompt("third")).text == "done"


async def test_a_command_taken_back_is_told_to_everybody_who_waits_for_it(tmp_path):
    async with open_stage(tmp_path, replies([Hang()])) as stage:
        prompts = Prompts(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompts.send, "first")
            await wait_all_tasks_blocked()
            nursery.start_soon(prompts.send, "second", "twice")
            await wait_all_tasks_blocked()
            async with trio.open_nursery() as waiting:
                waiting.start_soon(Prompts(stage).send, "second", "twice")
                await wait_all_tasks_blocked()
                waiting.cancel_scope.cancel()
            await wait_all_tasks_blocked()
            assert prompts.ended == ["withdrawn_command"]
            await stage.session.cancel()
        assert prompts.ended[1:] == ["user_stop"]


async def test_a_prompt_sent_again_while_its_question_waits_joins_its_turn(tmp_path):
    probe = Probe(permission="?")
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        prompts = Prompts(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompts.send, "go", "same")
            await wait_all_tasks_blocked()
            nursery.start_soon(prompts.send, "go", "same")
            nursery.start_soon(prompts.send, "something else", "same")
            await wait_all_tasks_blocked()
            assert prompts.ended == ["conflicting_command"]
            (asked,) = await stage.session.interactions()
            await stage.session.answer(asked.id, Grant())
        assert prompts.ended[1:] == ["done", "done"]
        assert len(probe.calls) == 1


async def test_a_prompt_sent_again_to_the_next_engine_joins_the_turn_it_began(tmp_path):
    async with open_stage(tmp_path, replies(ASK), Probe(permission="?")) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Prompts(stage).send, "go", "same")
            await wait_all_tasks_blocked()
            # Its asker leaves, the question stays.
            nursery.cancel_scope.cancel()
        session_id = stage.session.id
    probe = Probe(permission="?", gate=trio.Event())
    async with open_stage(
        tmp_path, replies(DONE), probe, session_id=session_id
    ) as stage:
        (asked,) = await stage.session.interactions()
        await stage.session.answer(asked.id, Grant())
        await probe.reached.wait()
        prompts = Prompts(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompts.send, "go", "same")
            await wait_all_tasks_blocked()
            assert probe.gate is not None
            probe.gate.set()
        assert prompts.ended == ["done"]


async def test_a_prompt_sent_again_is_told_how_it_ended_though_another_one_asks(
    tmp_path,
):
    script = replies([Say("first"), Halt()], ASK)
    async with open_stage(tmp_path, script, Probe(permission="?")) as stage:
        prompts = Prompts(stage)
        await prompts.send("go", "same")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompts.send, "ask")
            await wait_all_tasks_blocked()
            await prompts.send("go", "same")
            accepted = await stage.session.submit("go", command_id="same")
            await prompts.send("new")
            nursery.cancel_scope.cancel()
        assert accepted.delivery == "delivered"
        assert prompts.ended == ["first", "first", "interaction_pending"]


async def test_what_was_cleared_away_is_not_done_again_when_it_is_sent_again(tmp_path):
    probe = Probe()
    script = replies(ASK, DONE, DONE)
    async with open_stage(
        tmp_path, script, probe, permission_mode="full_access"
    ) as stage:
        prompts = Prompts(stage)
        await prompts.send("go", "same")
        await stage.session.clear()
        await prompts.send("go", "same")
        accepted = await stage.session.submit("go", command_id="same")
        await prompts.send("something new")
        assert prompts.ended == ["done", "withdrawn_command", "done"]
        assert accepted.delivery == "deleted"
        assert len(probe.calls) == 1
        said = [m for m in await stage.session.messages() if m.role == "user"]
        assert len(said) == 1


@attrs.define(eq=False)
class HeldPosts:
    """A record that holds the first command at a gate."""

    inner: Any
    gate: trio.Event = attrs.field(factory=trio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def post(self, command_id, body):
        await self.gate.wait()
        return await self.inner.post(command_id, body)


@pytest.mark.parametrize(
    ("command_id", "became"), [("known", "held"), ("new", "withdrawn_command")]
)
async def test_a_cancel_takes_back_what_is_new_and_nothing_that_was_taken_in_before(
    tmp_path, command_id, became
):
    async with open_stage(tmp_path, replies([Hang()])) as stage:
        told: list[str] = []

        async def queue():
            try:
                put = await stage.session.queue("later", command_id=command_id)
                told.append(put.delivery)
            except TurnRefusedError as exc:
                told.append(exc.code)

        loaded = stage.session._sessions.loaded(stage.session.id)
        assert loaded is not None
        session = loaded.session
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            await stage.session.queue("later", command_id="known")
            held = HeldPosts(session.ports.record)
            session.ports = attrs.evolve(session.ports, record=held)
            nursery.start_soon(stage.session.queue, "what the actor is busy with")
            await wait_all_tasks_blocked()
            nursery.start_soon(queue)
            await wait_all_tasks_blocked()
            nursery.start_soon(stage.session.cancel)
            await wait_all_tasks_blocked()
            held.gate.set()
        assert told == [became]
        rows = await stage.session.inputs()
        assert [row.delivery for row in rows] == ["held", "held"]


async def test_a_command_waits_until_its_session_has_a_provider(tmp_path):
    async with open_stage(tmp_path, []) as stage:
        session_id = stage.session.id
    post(stage, canonical_json(PromptCommand((TextPart("waits"),))))
    other = RehearsalProvider(replies(DONE), id="other")
    async with open_stage(tmp_path, [], provider=other, session_id=session_id) as stage:
        await wait_all_tasks_blocked()
        with pytest.raises(TurnRefusedError, match="is not set up here"):
            await stage.session.prompt("waits", command_id="command")
        await stage.session.configure(provider="other")
        turn = await stage.session.prompt("waits", command_id="command")
        assert turn.text == "done"


@pytest.mark.parametrize(
    "body",
    [
        '{"type":"later","x":1}',
        '{"type":"prompt","parts":[]}',
        canonical_json(PromptCommand((TextPart("x" * 300_000),))),
    ],
    ids=["unknown", "empty", "too large"],
)
async def test_a_command_that_is_none_is_dropped_and_the_session_lives(tmp_path, body):
    async with open_stage(tmp_path, []) as stage:
        session_id = stage.session.id
    post(stage, body)
    async with open_stage(tmp_path, replies(DONE), session_id=session_id) as stage:
        assert (await stage.session.prompt("go")).text == "done"
        assert stage.names().count("input/withdrawn") == 1
        assert [m.role for m in await stage.session.messages()] == ["user", "assistant"]


async def test_a_command_with_the_id_of_a_message_changes_no_message(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        turn = await stage.session.prompt("go")
        with pytest.raises(TurnRefusedError) as refused:
            await stage.session.prompt("mine", command_id=turn.message.id)
        assert refused.value.code == "conflicting_command"
        _, answer = await stage.session.messages()
        assert answer == turn.message
        assert (await stage.session.prompt("next")).text == "done"


async def test_a_prompt_that_comes_with_the_end_of_a_session_is_refused(tmp_path):
    async with open_stage(tmp_path, replies([Hang()])) as stage:
        prompts, configured = Prompts(stage), hold_settings(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompts.send, "first")
            await wait_all_tasks_blocked()
            nursery.start_soon(rename, stage)
            await wait_all_tasks_blocked()
            # While the session writes, the run ends, a prompt comes and a stop: the
            # session finds all three at once.
            loaded = stage.session._sessions.loaded(stage.session.id)
            assert loaded is not None
            assert loaded.session.turn is not None
            assert loaded.session.turn.ref is not None
            loaded.session.turn.ref.cancel(CancelCause.USER_STOP)
            nursery.start_soon(prompts.send, "second")
            await wait_all_tasks_blocked()
            nursery.start_soon(stage.session.close)
            await wait_all_tasks_blocked()
            configured.set()
            await wait_all_tasks_blocked()
            assert loaded.ref.exited
        assert sorted(prompts.ended) == ["session_closing", "user_stop"]


@attrs.define(eq=False)
class HeldSettings:
    """A record that holds changes of settings at a gate."""

    inner: Any
    gate: trio.Event = attrs.field(factory=trio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def append(self, facts, settles=()):
        if facts[0].name == "session/configured":
            await self.gate.wait()
        await self.inner.append(facts, settles)


def hold_settings(stage):
    loaded = stage.session._sessions.loaded(stage.session.id)
    assert loaded is not None
    session = loaded.session
    held = HeldSettings(session.ports.record)
    session.ports = attrs.evolve(session.ports, record=held)  # pyright: ignore[reportArgumentType]
    return held.gate


async def rename(stage):
    await stage.session.configure(title="other")


async def test_an_answer_that_was_taken_back_while_it_was_held_is_none(tmp_path):
    gate = trio.Event()
    probe = Probe(permission="?", gate=gate)
    two = [Call("probe", {"n": 1}), Call("probe", {"n": 2}), Halt("tool_use")]
    async with open_stage(tmp_path, replies(two, DONE), probe) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            first, second = await stage.session.interactions()
            await stage.session.answer(first.id, Grant())
            await probe.reached.wait()
            async with trio.open_nursery() as waiting:
                waiting.start_soon(stage.session.answer, second.id, Grant())
                await wait_all_tasks_blocked()
                waiting.cancel_scope.cancel()
            gate.set()
            await wait_all_tasks_blocked()
            assert await stage.session.interactions() == (second,)
            await stage.session.answer(second.id, Deny())
        assert probe.calls == [{"n": 1}]


@pytest.mark.parametrize("what", ["question", "command"])
async def test_a_disk_that_fails_a_cancel_is_told_and_nothing_hangs(
    tmp_path, autojump_clock: MockClock, what
):
    script = replies(ASK, DONE) if what == "question" else replies([Hang()], DONE)
    async with open_stage(tmp_path, script, Probe(permission="?")) as stage:
        prompts = Prompts(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompts.send)
            await wait_all_tasks_blocked()
            writes = []
            # The row of a command is written before it is taken back.
            wanted = 2 if what == "command" else 1

            def fail(written):
                writes.append(written)
                full = len(writes) == wanted
                return DiskFullError("the disk is full") if full else None

            spy_on(stage).fail = fail
            if what == "command":
                async with trio.open_nursery() as waiting:
                    waiting.start_soon(prompts.send, "second")
                    await wait_all_tasks_blocked()
                    waiting.cancel_scope.cancel()
                await wait_all_tasks_blocked()
            started = trio.current_time()
            await stage.session.cancel()
            assert trio.current_time() == started
            await wait_all_tasks_blocked()
        told = ["turn_failed"] if what == "question" else ["user_stop"]
        assert prompts.ended == told
        async with stage.session.follow() as feed:
            assert feed.snapshot is not None
        questions = await stage.session.interactions()
        assert len(questions) == (what == "question")
        for question in questions:
            await stage.session.answer(question.id, Deny())
