"""Whatever is said, taken back, forked, compacted and undone: the laws of views hold.

A tape only ever grows, a conversation is what the user made of it, and each request is
whole, ends with what was asked, and tells of every message that there ever was.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import trio
from hypothesis import given, settings as budget, strategies as st
from kit.rehearsal import read_tape
from kit.views import manifests_of, view_problems
from trio.testing import MockClock

from greenroom.actors.providers import Halt, RehearsalProvider, Say
from greenroom.engine import Engine, SessionHandle
from greenroom.protocol import MessageRecord, TapeEntry, TextBlock, UserMessage
from greenroom.storage import open_reader, verify
from greenroom.testing import open_test_engine

LONG = "word " * 100

STEPS = st.lists(
    st.one_of(
        st.sampled_from(["say", "compact", "undo", "reload"]),
        st.tuples(st.just("rewind"), st.integers(0, 3)),
        st.tuples(st.just("fork"), st.integers(0, 3)),
    ),
    min_size=2,
    max_size=9,
)


def answers(request: Any) -> list[Any]:
    if request.tool_choice == "none":
        return [Say("## Goal\nas before"), Halt()]
    return [Say(f"yes {LONG}"), Halt()]


@attrs.define(eq=False)
class Talk:
    """A session, and what the user made of it."""

    engine: Engine
    state: Path
    provider: RehearsalProvider
    session: SessionHandle
    asked: list[str] = attrs.field(factory=list)
    """What was said and not taken back."""
    tape: list[TapeEntry] = attrs.field(factory=list)
    said: int = 0

    async def step(self, step: Any) -> None:
        what, number = step if isinstance(step, tuple) else (step, 0)
        before = len(self.provider.requests)
        match what:
            case "say":
                self.said += 1
                text = f"ask {self.said} {LONG}"
                turn = await self.session.prompt(text)
                assert turn.outcome == "completed"
                self.asked.append(text)
                self.check_request(text)
            case "compact":
                await self.session.compact()
            case "undo":
                await self.session.undo_compaction()
            case "reload":
                await self.session.close()
            case "rewind":
                kept = max(0, len(self.asked) - number)
                await self.session.rewind(await self.end_of(kept))
                del self.asked[kept:]
            case _:
                kept = max(0, len(self.asked) - number)
                if kept == 0:
                    return
                await self.check()
                end = await self.end_of(kept)
                self.session = await self.engine.fork_session(
                    self.session.id, through=end
                )
                self.asked, self.tape = self.asked[:kept], []
        assert what in ("say", "compact") or len(self.provider.requests) == before
        await self.check()

    async def end_of(self, turns: int) -> str | None:
        messages = await self.session.messages()
        return messages[2 * turns - 1].id if turns else None

    async def check(self) -> None:
        tape = read_tape(self.state, self.session.id)
        assert tape[: len(self.tape)] == self.tape
        self.tape = tape
        messages = await self.session.messages()
        assert [text for m in messages for text in texts_of(m)][::2] == self.asked
        assert list(view_problems(tape, self.provider.requests)) == []

    def check_request(self, text: str) -> None:
        shown = self.provider.requests[-1].messages
        assert isinstance(shown[-1], UserMessage)
        assert text in str(shown[-1])
        # What the user said first is always there, and nothing that was taken back.
        assert self.asked[0] in str(shown)
        for number in range(1, self.said + 1):
            gone = f"ask {number} {LONG}"
            assert gone in self.asked or gone not in str(shown)
        tape = read_tape(self.state, self.session.id)
        recorded = [e for e in tape if e.fact.name == "message/recorded"]
        ever = {e.fact.source_id for e in recorded}
        manifest = manifests_of(tape)[-1].manifest
        out = sum(each.count for each in manifest.excluded)
        history = len(shown) - len(self.front(manifest))
        # Every message is one of the history, or is told of as left out.
        assert out + history == len(ever)

    def front(self, manifest: Any) -> list[Any]:
        heads = ("system_prompt", "pinned_first_user", "summary_checkpoint")
        return [p for p in manifest.included if p.reason in heads and p.count]


def texts_of(message: MessageRecord) -> list[str]:
    return [block.text for block in message.blocks if isinstance(block, TextBlock)]


@budget(max_examples=25, deadline=None)
@given(STEPS)
def test_whatever_the_user_makes_of_a_conversation_the_laws_hold(steps):
    with TemporaryDirectory() as folder:
        trio.run(play, steps, Path(folder), clock=MockClock(autojump_threshold=0))


async def play(steps: list[Any], folder: Path) -> None:
    provider = RehearsalProvider(answers)
    async with open_test_engine(folder, provider) as engine:
        session = await engine.create_session(workspace=folder, system_prompt="rules")
        talk = Talk(engine, engine.state, provider, session)
        for step in ["say", *steps, "say"]:
            await talk.step(step)
    reader = open_reader(folder / "state")
    try:
        assert verify(reader) == []
    finally:
        reader.close()
