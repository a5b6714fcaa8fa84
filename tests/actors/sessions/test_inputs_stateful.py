"""Whatever is done with a session's input: nothing is lost, doubled or reordered.

Plans of deeds, on a real session in memory, through cancels, pauses, failed turns and
restarts. What was accepted and not deleted is said in the end, once.
"""

from __future__ import annotations

from typing import Any

import attrs
import trio
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.engine import Deny, Grant, open_engine
from greenroom.protocol import GreenroomError, InputRefusedError, TextBlock
from greenroom.storage import MemoryStore
from greenroom.testing import Call, Fail, Halt, RecordingTool, RehearsalProvider, Say

ROUNDS = ("says", "works", "asks", "fails")

DEEDS = st.one_of(
    st.tuples(st.just("queue")),
    st.tuples(st.just("steer")),
    st.tuples(st.just("prompt")),
    st.tuples(st.just("again")),
    st.tuples(st.sampled_from(["delete", "promote", "move"]), st.integers(0, 5)),
    st.tuples(st.sampled_from(["cancel", "release", "answer", "restart"])),
    st.tuples(st.just("rest")),
)
PLANS = st.lists(DEEDS, min_size=3, max_size=16)
QUEUED = st.lists(
    st.one_of(
        st.tuples(st.just("queue")),
        st.tuples(st.sampled_from(["cancel", "restart", "rest", "answer"])),
    ),
    min_size=3,
    max_size=14,
)
SCRIPTS = st.lists(st.sampled_from(ROUNDS), max_size=10)


@attrs.define(eq=False)
class Story:
    """A session, over the lives of its engines."""

    script: list[str]
    store: MemoryStore = attrs.field(factory=MemoryStore.create)
    session_id: str = ""
    accepted: list[str] = attrs.field(factory=list)
    """In the order in which they were told to be taken in."""
    deleted: set[str] = attrs.field(factory=set)
    said: list[str] = attrs.field(factory=list)
    """What the user has said in the end, in order."""
    number: int = 0
    rounds: int = 0

    def round(self, request: Any) -> Any:
        self.rounds += 1
        match self.script.pop(0) if self.script else "says":
            case "says":
                return [Say("said"), Halt()]
            case "fails":
                return [Fail("no", status=400)]
            case tool:
                # Never the same call again: a loop is stopped with an error.
                return [Call(tool, {"n": self.rounds}), Halt("tool_use")]

    async def live(self, deeds: list[tuple[Any, ...]]) -> None:
        """Do what is left of *deeds* until one ends this life."""
        works = RecordingTool("works")
        asks = RecordingTool("asks", permission="may it?")
        async with (
            open_engine(
                store=self.store,
                provider=RehearsalProvider(self.round, id="rehearsal"),
                tools=[works, asks],
                builtin=False,
                environment={},
                threads=False,
                gc_thresholds=False,
            ) as engine,
            trio.open_nursery() as nursery,
        ):
            if not self.session_id:
                self.session_id = (await engine.create_session(workspace="/")).id
            session = await engine.open_session(self.session_id)
            while deeds and (deed := deeds.pop(0)) != ("restart",):
                await self.do(session, nursery, *deed)
            if not deeds:
                await self.finish(session)
            nursery.cancel_scope.cancel()

    async def do(self, session: Any, nursery: trio.Nursery, what: str, at: int = 0):
        match what:
            case "queue" | "steer" | "prompt":
                self.number += 1
                await self.put(session, nursery, what, f"{what} {self.number}")
            case "again" if self.accepted:
                text = self.accepted[-1]
                await self.put(session, nursery, text.split()[0], text)
            case "delete" | "promote" | "move":
                await self.change(session, what, at)
            case "cancel":
                await session.cancel()
            case "release":
                await session.release_inputs()
            case "answer":
                await answer(session, Grant())
            case _:
                await wait_all_tasks_blocked()

    async def put(self, session: Any, nursery: Any, what: str, text: str) -> None:
        if what == "prompt":
            nursery.start_soon(self.prompt, session, text)
            await wait_all_tasks_blocked()
            return
        put = session.queue if what == "queue" else session.steer
        try:
            await put(text, command_id=text)
        except InputRefusedError:
            # The queue is full.
            return
        self.take(text)

    async def prompt(self, session: Any, text: str) -> None:
        # Whoever prompts may be told that it failed, and then it may be said or not.
        try:
            await session.prompt(text, command_id=text)
        except GreenroomError:
            return
        self.take(text)

    def take(self, text: str) -> None:
        if text not in self.accepted:
            self.accepted.append(text)

    async def change(self, session: Any, what: str, at: int) -> None:
        rows = await session.inputs()
        if not rows:
            return
        row = rows[at % len(rows)]
        said = set(row.message_ids) if row.mode == "steer" else {row.id}
        try:
            match what:
                case "delete":
                    await session.delete_input(row.id)
                    self.deleted |= said | {row.id}
                case "promote":
                    await session.promote_input(row.id)
                case _:
                    await session.move_input(row.id, at)
        except InputRefusedError:
            # It is on its way, or was said to the turn.
            return

    async def finish(self, session: Any) -> None:
        """Let everything have its turn, and look."""
        self.script.clear()
        for _ in range(40):
            await wait_all_tasks_blocked()
            await answer(session, Deny())
            if await session.inputs() == () and not await session.interactions():
                break
            await session.release_inputs()
        await wait_all_tasks_blocked()
        assert await session.inputs() == ()
        said = self.said = texts(await session.messages(limit=500))
        assert len(said) == len(set(said)), "something was said twice"
        for text in self.accepted:
            if text not in self.deleted:
                assert text in said, f"{text!r} was accepted and is lost"
        for text in self.deleted:
            assert text not in said, f"{text!r} was deleted and is said"


async def answer(session: Any, given: Any) -> None:
    for asked in await session.interactions():
        await session.answer(asked.id, given)
        await wait_all_tasks_blocked()


def texts(messages: Any) -> list[str]:
    return [
        "".join(b.text for b in m.blocks if isinstance(b, TextBlock))
        for m in messages
        if m.role == "user"
    ]


def tell(plan: list[tuple[Any, ...]], script: list[str]) -> Story:
    """Live through *plan*, and return the story of it."""
    story, deeds = Story(list(script)), [*plan, ("rest",)]

    async def lives() -> None:
        while deeds:
            await story.live(deeds)

    trio.run(lives, clock=MockClock(autojump_threshold=0))
    return story


@settings(max_examples=40, deadline=None)
@given(PLANS, SCRIPTS)
def test_nothing_that_was_accepted_is_lost_or_doubled(plan, script):
    tell(plan, script)


@settings(max_examples=25, deadline=None)
@given(QUEUED, st.lists(st.sampled_from(["asks", "says", "works"]), max_size=10))
def test_the_queue_keeps_its_order_through_cancels_pauses_and_restarts(plan, script):
    story = tell(plan, script)
    assert story.said == story.accepted
