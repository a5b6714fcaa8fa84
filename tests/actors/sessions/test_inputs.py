"""Queued and steered input: taken in, changed, let in, settled."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from kit.rehearsal import Probe, Stage, calls_of, open_stage, replies, spy_on
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Fail, Halt, Hang, Pause, Say
from greenroom.engine import (
    Deny,
    Other,
    Question,
    TurnFailedError,
    TurnRefusedError,
)
from greenroom.protocol import (
    DiskFullError,
    ImagePart,
    InputRefusedError,
    InputsChanged,
    QuestionOption,
    TextBlock,
    TextPart,
    UserMessage,
)

DONE = [Say("done"), Halt()]
PICTURE = ImagePart("image/png", "aWNvbg==")
QUESTION = Question("Which?", "Which", (QuestionOption("red"),))
HELD = [Call("probe", {"n": 1}), Halt("tool_use")]


def said(messages) -> list[str]:
    return [
        "".join(b.text for b in m.blocks if isinstance(b, TextBlock))
        for m in messages
        if m.role == "user"
    ]


def texts(rows) -> list[str]:
    return ["".join(p.text for p in row.parts if hasattr(p, "text")) for row in rows]


def refused(code: str):
    return pytest.raises((InputRefusedError, TurnRefusedError), check=code_is(code))


def code_is(code: str):
    return lambda exc: exc.code == code


def asked_with(provider: Any) -> list[list[str]]:
    """What the user had said, by request."""
    return [
        [
            part.text
            for message in request.messages
            if isinstance(message, UserMessage)
            for part in message.parts
            if isinstance(part, TextPart)
        ]
        for request in provider.requests
    ]


@attrs.define(eq=False)
class Busy:
    """A session whose turn runs a tool that is held."""

    stage: Stage
    probe: Probe
    results: list[str] = attrs.field(factory=list)

    async def prompt(self, text: str, command_id: str = "") -> None:
        turn = await self.stage.session.prompt(text, command_id=command_id)
        self.results.append(turn.stop_reason)

    async def go_on(self) -> None:
        assert self.probe.gate is not None
        self.probe.gate.set()
        await wait_all_tasks_blocked()


@asynccontextmanager
async def busy(tmp_path, *after):
    """A turn in the middle of a tool; *after* it the model answers so."""
    probe = Probe(gate=trio.Event())
    async with open_stage(tmp_path, replies(HELD, *after), probe) as stage:
        held = Busy(stage, probe)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held.prompt, "first")
            await probe.reached.wait()
            yield held
            if probe.gate is not None:
                probe.gate.set()
            await wait_all_tasks_blocked()


#### The queue


@pytest.mark.contract("PIN-02")
async def test_the_queue_is_edited_while_it_waits_and_is_in_no_transcript(tmp_path):
    async with busy(tmp_path, DONE, DONE, DONE) as held:
        session = held.stage.session
        for text in "abcde":
            await session.queue(text, command_id=text)
        with refused("queue_full"):
            await session.queue("f")
        assert texts(await session.edit_input("b", "B")) == ["a", "B", "c", "d", "e"]
        assert texts(await session.move_input("e", -3)) == ["e", "a", "B", "c", "d"]
        assert texts(await session.move_input("e", 99)) == ["a", "B", "c", "d", "e"]
        for input_id in "acd":
            rows = await session.delete_input(input_id)
        assert [(row.id, row.order) for row in rows] == [("b", 1), ("e", 2)]
        assert await session.inputs() == rows
        assert said(await session.messages()) == ["first"]
        await held.go_on()
        assert said(await session.messages()) == ["first", "B", "e"]
        assert await session.inputs() == ()


async def test_a_queued_input_waits_for_the_idle_session(tmp_path):
    async with busy(tmp_path, DONE, [Say("to the queued"), Halt()]) as held:
        accepted = await held.stage.session.queue("next")
        assert accepted.delivery == "waiting"
        await held.go_on()
        assert held.results == ["complete"]
        provider = held.stage.provider
        # Not at the batch, as a steer would be (J5): the turn went on without it.
        assert asked_with(provider) == [["first"], ["first"], ["first", "next"]]


async def test_the_same_key_is_one_input_and_other_content_a_conflict(tmp_path):
    async with busy(tmp_path, DONE, DONE, DONE) as held:
        session = held.stage.session
        first = await session.queue("a", command_id="key")
        again = await session.queue("a", command_id="key")
        assert first == again
        with refused("conflicting_command"):
            await session.queue("b", command_id="key")
        with refused("conflicting_command"):
            await session.steer("a", command_id="key")
        await held.go_on()
        gone = await session.queue("a", command_id="key")
        assert (gone.delivery, gone.row) == ("delivered", None)
        await session.queue("c", command_id="other")
        await wait_all_tasks_blocked()
        assert said(await session.messages()) == ["first", "a", "c"]


async def test_an_input_that_was_deleted_says_so_when_it_is_put_in_again(tmp_path):
    async with busy(tmp_path, DONE) as held:
        session = held.stage.session
        await session.queue("a", command_id="key")
        await session.delete_input("key")
        assert (await session.queue("a", command_id="key")).delivery == "deleted"
        assert await session.inputs() == ()


#### The steer


@pytest.mark.contract("PIN-03")
async def test_a_steer_is_in_the_transcript_at_once_and_its_content_locked(tmp_path):
    async with busy(tmp_path, DONE, DONE) as held:
        session = held.stage.session
        for text in "abcde":
            await session.queue(text, command_id=text)
        await session.steer("look here", command_id="s")
        message = (await session.messages())[-1]
        assert (message.status, said([message])) == ("pending", ["look here"])
        receipt = message.metadata.input_receipt
        assert receipt is not None
        assert (receipt.mode, receipt.read_at) == ("steer", None)
        with refused("input_locked"):
            await session.edit_input("s", "elsewhere")
        rows = await session.delete_input("s")
        assert texts(rows) == ["a", "b", "c", "d", "e"]
        assert said(await session.messages()) == ["first"]
        for text in "abcde":
            await session.delete_input(text)


@pytest.mark.contract("PIN-04")
async def test_further_steers_are_added_to_the_open_one_as_messages_of_their_own(
    tmp_path,
):
    async with busy(tmp_path, DONE) as held:
        session = held.stage.session
        await session.steer("one", command_id="s1")
        second = await session.steer([TextPart("two"), PICTURE], command_id="s2")
        await session.steer("three", command_id="s3")
        (row,) = await session.inputs()
        assert second.input_id == row.id == "s1"
        assert row.parts == (TextPart("one\n\ntwo"), PICTURE, TextPart("three"))
        assert row.message_ids == ("s1", "s2", "s3")
        await held.go_on()
        assert said(await session.messages()) == ["first", "one", "two", "three"]
        assert asked_with(held.stage.provider)[-1] == ["first", "one", "two", "three"]


@pytest.mark.contract("PIN-06")
async def test_a_steer_during_a_tool_is_read_at_the_next_settled_batch(tmp_path):
    async with busy(tmp_path, DONE) as held:
        session = held.stage.session
        await session.queue("later", command_id="q")
        await session.steer("now", command_id="s")
        assert held.probe.calls == [{"n": 1}]
        await held.go_on()
        assert held.results == ["pending_input"]
        messages = await session.messages()
        # It goes before what was queued earlier (J4), and reads the tool's result.
        assert asked_with(held.stage.provider)[1] == ["first", "now"]
        assert messages[1].metadata.run_stop_reason == "pending_input"
        (call,) = calls_of(messages[1])
        assert call.response == "result of probe 1"


@pytest.mark.contract("PIN-06")
async def test_a_steer_during_a_text_does_not_cut_it(tmp_path, mock_clock):
    text = [Say("a text"), Pause(5.0), Say(" goes on"), Halt()]
    async with open_stage(tmp_path, replies(text, DONE)) as stage:
        turns = []

        async def prompt():
            turns.append(await stage.session.prompt("first"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            await stage.session.steer("now")
            await wait_all_tasks_blocked()
            assert turns == []
            mock_clock.jump(5.0)
        # There was no further batch: it becomes the next turn, once (J2, J3).
        assert (turns[0].text, turns[0].stop_reason) == ("a text goes on", "complete")
        await wait_all_tasks_blocked()
        assert said(await stage.session.messages()) == ["first", "now"]
        assert len(stage.provider.requests) == 2
        assert await stage.session.inputs() == ()


@pytest.mark.contract("PIN-06")
async def test_a_steer_before_anything_came_redirects_the_turn(tmp_path):
    async with open_stage(tmp_path, replies([Hang()], DONE)) as stage:
        turns = []

        async def prompt():
            turns.append(await stage.session.prompt("first"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            await stage.session.steer("rather this")
            await wait_all_tasks_blocked()
        assert (turns[0].outcome, turns[0].stop_reason) == (
            "completed",
            "pending_input",
        )
        assert said(await stage.session.messages()) == ["first", "rather this"]
        assert asked_with(stage.provider)[-1] == ["first", "rather this"]


async def test_a_steer_without_a_turn_is_let_in_at_once(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.steer("go")
        await wait_all_tasks_blocked()
        user, reply = await stage.session.messages()
        assert (user.status, reply.status) == ("sent", "sent")
        assert user.metadata.input_receipt is not None
        assert user.metadata.input_receipt.read_at is not None


async def test_a_steer_is_read_once(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        for text in ("one", "two"):
            await stage.session.steer(text)
            await wait_all_tasks_blocked()
        assert asked_with(stage.provider) == [["one"], ["one", "two"]]
        receipts = [e for e in stage.tape() if '"readAt"' in e.fact.payload]
        # Read, and sent behind its turn.
        assert len(receipts) == 4


async def test_a_steer_for_another_turn_than_the_one_that_runs_is_refused(tmp_path):
    async with busy(tmp_path, DONE) as held:
        session = held.stage.session
        reply = (await session.messages())[-1]
        with refused("turn_changed"):
            await session.steer("late", expected_turn="another")
        accepted = await session.steer(
            "in time", expected_turn=reply.id, command_id="s"
        )
        await held.go_on()
        # Put in again it is the same, though its turn is over.
        again = await session.steer("in time", expected_turn=reply.id, command_id="s")
        assert (accepted.delivery, again.delivery) == ("waiting", "delivered")
        with refused("turn_changed"):
            await session.steer("too late", expected_turn=reply.id)


@pytest.mark.contract("PIN-05")
async def test_a_queued_input_is_promoted_with_its_message_in_one_append(tmp_path):
    async with busy(tmp_path, DONE) as held:
        session, spy = held.stage.session, spy_on(held.stage)
        await session.queue("now, please", command_id="q")
        failing = iter([DiskFullError("the disk is full")])
        spy.fail = lambda what: next(failing, None)
        with pytest.raises(DiskFullError):
            await session.promote_input("q")
        assert [row.mode for row in await session.inputs()] == ["queue"]
        assert said(await session.messages()) == ["first"]
        before = len(held.stage.tape())
        await session.promote_input("q")
        assert held.stage.names()[before:] == ["input/recorded", "message/recorded"]
        await held.go_on()
        assert said(await session.messages()) == ["first", "now, please"]
        assert held.results == ["pending_input"]


#### After a stop, a failure, a question


async def test_a_users_stop_holds_what_waits_until_it_is_released(tmp_path):
    async with busy(tmp_path, DONE, DONE) as held:
        session = held.stage.session
        await session.queue("a")
        await session.cancel()
        await wait_all_tasks_blocked()
        (row,) = await session.inputs()
        assert row.delivery == "held"
        assert said(await session.messages()) == ["first"]
        await session.release_inputs()
        await wait_all_tasks_blocked()
        assert said(await session.messages()) == ["first", "a"]


async def test_what_is_held_goes_before_the_prompt_that_lets_it_go_on(tmp_path):
    async with busy(tmp_path, DONE, DONE) as held:
        session = held.stage.session
        await session.queue("a")
        await session.cancel()
        assert (await session.prompt("b")).text == "done"
        assert said(await session.messages()) == ["first", "a", "b"]


async def test_a_failed_turn_of_the_queue_is_taken_back_and_its_text_returned(
    tmp_path,
):
    bad = [Fail("no", status=400)]
    async with busy(tmp_path, DONE, bad, DONE, DONE) as held:
        session = held.stage.session
        await session.queue("a", command_id="q")
        await held.go_on()
        (row,) = await session.inputs()
        assert (row.id, row.delivery, texts([row])) == ("q", "returned", ["a"])
        assert said(await session.messages()) == ["first"]
        # The journal keeps the terminal of the run.
        assert held.stage.journal()[-1].outcome == "error"
        assert (await session.prompt("b")).text == "done"
        assert said(await session.messages()) == ["first", "a", "b"]
        assert asked_with(held.stage.provider)[-1] == ["first", "a", "b"]


@pytest.mark.contract("PIN-08")
async def test_a_question_keeps_the_queue_closed_until_it_is_answered(tmp_path):
    first = [Call("asks", {}), Halt("tool_use")]
    probe = Probe("asks", question=QUESTION)
    async with open_stage(tmp_path, replies(first, DONE, DONE, DONE), probe) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "first")
            await wait_all_tasks_blocked()
            await stage.session.queue("later")
            await stage.session.steer("meanwhile")
            await wait_all_tasks_blocked()
            assert said(await stage.session.messages()) == ["first", "meanwhile"]
            (asked,) = await stage.session.interactions()
            await stage.session.answer(asked.id, Deny())
            await wait_all_tasks_blocked()
        assert said(await stage.session.messages()) == ["first", "meanwhile", "later"]


@pytest.mark.contract("PIN-08")
async def test_a_follow_up_of_the_users_own_keeps_the_queue_closed(tmp_path):
    first = [Call("asks", {}), Halt("tool_use")]
    probe = Probe("asks", question=QUESTION)
    async with open_stage(tmp_path, replies(first, DONE, DONE), probe) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "first")
            await wait_all_tasks_blocked()
            await stage.session.queue("later")
            (asked,) = await stage.session.interactions()
            await stage.session.answer(asked.id, Other())
        await wait_all_tasks_blocked()
        assert said(await stage.session.messages()) == ["first"]
        assert (await stage.session.prompt("my own")).text == "done"
        await wait_all_tasks_blocked()
        assert said(await stage.session.messages()) == ["first", "my own", "later"]


#### Refused


@pytest.mark.contract("SES-18")
@pytest.mark.parametrize("why", ["interaction_pending", "empty_message"])
async def test_a_turn_that_is_refused_leaves_no_trace(tmp_path, why):
    first = [Call("asks", {}), Halt("tool_use")]
    probe = Probe("asks", question=QUESTION)
    async with (
        open_stage(tmp_path, replies(first, DONE), probe) as stage,
        trio.open_nursery() as nursery,
    ):
        if why == "interaction_pending":
            nursery.start_soon(stage.session.prompt, "first")
        await wait_all_tasks_blocked()
        before = stage.tape()
        async with stage.session.follow() as feed:
            assert feed.snapshot is not None
            version = feed.snapshot.status_version
        with refused(why):
            await stage.session.prompt("more" if why == "interaction_pending" else " ")
        assert stage.tape() == before
        async with stage.session.follow() as feed:
            assert feed.snapshot is not None
            assert feed.snapshot.status_version == version
        await stage.session.cancel()


#### One order


async def test_what_is_watched_is_what_the_rows_become(tmp_path):
    async with busy(tmp_path, DONE, DONE) as held:
        session = held.stage.session
        await session.queue("a", command_id="q")
        async with session.follow() as feed:
            assert feed.snapshot is not None
            assert [row.id for row in feed.snapshot.inputs] == ["q"]
            await held.go_on()
            seen = []
            async for event in feed:
                if isinstance(event, InputsChanged):
                    seen.append((event.input.state, event.input.end))
                    if event.input.state == "consumed":
                        break
        assert seen == [("claimed", None), ("consumed", "delivered")]


@pytest.mark.contract("PIN-09")
async def test_many_at_once_have_their_turns_one_after_the_other(tmp_path):
    async with open_stage(tmp_path, replies(*[DONE] * 30)) as stage:
        running: list[int] = []
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(stage.session.prompt, f"p{number}")
            await wait_all_tasks_blocked()
        running.append(stage.provider.active)
        messages = await stage.session.messages()
        assert sorted(said(messages)) == sorted(f"p{n}" for n in range(20))
        roles = [m.role for m in messages]
        assert roles == ["user", "assistant"] * 20


@pytest.mark.contract("PIN-09")
async def test_what_is_queued_during_the_first_turn_is_delivered(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "first")
            nursery.start_soon(stage.session.queue, "second")
        await wait_all_tasks_blocked()
        assert sorted(said(await stage.session.messages())) == ["first", "second"]


async def test_a_direct_prompt_that_could_not_begin_comes_back(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        spy = spy_on(stage)
        failing = iter([DiskFullError("the disk is full")])
        spy.fail = lambda what: next(failing, None) if what == "RunStarted" else None
        with pytest.raises(TurnFailedError):
            await stage.session.prompt("go", command_id="key")
        assert await stage.session.messages() == []
        assert (await stage.session.prompt("again")).text == "done"
        assert said(await stage.session.messages()) == ["go", "again"]
