"""The turn of ``greenroom run``: what it does when things happen at once."""

from __future__ import annotations

import signal
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from greenroom.cli._conversation import Conversation
from greenroom.cli._exit import ExitCode
from greenroom.engine import TurnFailedError, TurnRefusedError
from greenroom.protocol import ActionBlock, Deny, InteractionError, ItemId

QUESTION = ActionBlock(
    id=ItemId("m.1"),
    action="tool_call_permission",
    origin="pre-check-permission",
    tool_block_id=ItemId("m.0"),
    title="may it?",
)


class Feed:
    """Events of a session where nothing happens."""

    def __aiter__(self):
        return self

    async def __anext__(self):
        await trio.sleep_forever()


@attrs.define(eq=False)
class Session:
    """A session with one open question."""

    refusal: Exception | None = None
    questions: list[ActionBlock] = attrs.field(factory=lambda: [QUESTION])
    answers: list[Any] = attrs.field(factory=list)
    prompts: list[str] = attrs.field(factory=list)
    cancelled: trio.Event = attrs.field(factory=trio.Event)

    @asynccontextmanager
    async def follow(self):
        yield Feed()

    async def interactions(self):
        await trio.lowlevel.checkpoint()
        return tuple(self.questions)

    async def answer(self, interaction_id, answer):
        self.answers.append(answer)
        self.questions.clear()
        if self.refusal is not None:
            raise self.refusal

    async def prompt(self, text):
        self.prompts.append(text)
        await trio.sleep_forever()

    async def compact(self, focus):
        self.prompts.append(f"compact {focus}")
        await self.cancelled.wait()
        raise TurnFailedError("the compaction was stopped; nothing was changed")

    async def cancel(self):
        self.questions.clear()
        self.cancelled.set()
        await trio.sleep_forever()


async def say_no(block):
    return Deny()


def conversation(session, ask=say_no):
    view = SimpleNamespace(ask=ask, note=lambda text: None, leave=lambda: None)
    return Conversation(session, view, yes=False)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "refusal",
    [
        InteractionError("already_answered", "m.1", "it has its answer already"),
        TurnRefusedError("turn_ended", "the turn has ended"),
    ],
)
async def test_an_answer_that_comes_too_late_is_no_error(refusal):
    session = Session(refusal)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(conversation(session)._answer_all, nursery.cancel_scope)
        await wait_all_tasks_blocked()
        assert session.answers == [Deny()]
        session.refusal = None
        session.questions.append(QUESTION)
        nursery.cancel_scope.cancel()


class Signals:
    """What the user sends, one signal after the other."""

    def __init__(self):
        self.send, self.receive = trio.open_memory_channel[int](10)

    def __call__(self, *numbers):
        return self

    def __enter__(self):
        return self.receive

    def __exit__(self, *exc):
        pass


async def never(block):
    await trio.sleep_forever()


async def hold(conversation, ended):
    ended.append(await conversation.hold("go"))


async def test_ctrl_c_at_an_earlier_question_sends_no_prompt(monkeypatch):
    signals, session, ended = Signals(), Session(), []
    monkeypatch.setattr(trio, "open_signal_receiver", signals)
    talk = conversation(session, never)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, talk, ended)
        await wait_all_tasks_blocked()
        signals.send.send_nowait(2)
        await session.cancelled.wait()
        talk._tell_change()
    assert ended == [ExitCode.INTERRUPTED]
    assert session.prompts == []


async def test_the_second_ctrl_c_leaves_while_the_first_still_stops(monkeypatch):
    signals, session, ended = Signals(), Session(questions=[]), []
    monkeypatch.setattr(trio, "open_signal_receiver", signals)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, conversation(session), ended)
        await wait_all_tasks_blocked()
        signals.send.send_nowait(2)
        await session.cancelled.wait()
        signals.send.send_nowait(2)
    assert ended == [ExitCode.INTERRUPTED]
    assert session.prompts == ["go"]


async def test_a_stopped_compaction_is_an_interrupt_and_no_error():
    session = Session(questions=[])
    talk = conversation(session)
    statuses = []

    async def hold():
        statuses.append(await talk.hold("/compact the door"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await wait_all_tasks_blocked()
        assert session.prompts == ["compact the door"]
        signal.raise_signal(signal.SIGINT)
    assert statuses == [ExitCode.INTERRUPTED]
