"""What a watcher is told when messages are large and when it falls behind."""

from __future__ import annotations

import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Say
from greenroom.actors.sessions import SlowWatcherError, _hub
from greenroom.engine import ToolResult, UnknownCursorError
from greenroom.protocol import (
    MessagesChanged,
    StatusChanged,
    StreamCompleted,
    ToolMessage,
)

DONE = [Say("done"), Halt()]


async def until_idle(feed):
    events = []
    async for event in feed:
        events.append(event)
        if isinstance(event, StatusChanged) and event.state != "generating":
            return events[:-1]
    return events


async def test_the_end_of_a_large_message_is_told_once_and_last(tmp_path, monkeypatch):
    monkeypatch.setattr(_hub, "FEED_BYTES", 20 << 20)
    # A control character takes six bytes as JSON: more than a fact holds.
    large = [Say("\x01" * 99_000) for _ in range(4)]
    async with open_stage(tmp_path, replies([*large, Halt()])) as stage:
        async with stage.session.follow(after=0) as feed:
            turn = await stage.session.prompt("go")
            # The feed begins idle.
            await until_idle(feed)
            events = await until_idle(feed)
        parts = [e for e in events if isinstance(e, MessagesChanged)]
        assert [e.message.status for e in parts[-3:]] == ["pending", "pending", "sent"]
        ends = [e for e in events if isinstance(e, StreamCompleted)]
        assert [e.seq for e in ends] == [parts[-1].seq]
        stored = (await stage.session.messages())[-1]
        assert stored.blocks == turn.message.blocks


async def test_questions_about_large_calls_can_be_given_up(tmp_path):
    arguments = {"text": "\x01" * 30_000}
    calls = [Call("probe", arguments) for _ in range(8)]
    script = replies([*calls, Halt("tool_use")], DONE)
    async with open_stage(tmp_path, script, Probe(permission="?")) as stage:
        turns = []

        async def prompt():
            turns.append(await stage.session.prompt("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        assert turns[0].stop_reason == "user_stop"
        assert await stage.session.interactions() == ()
        assert (await stage.session.prompt("next")).text == "done"


@pytest.mark.parametrize("how", ["cursor", "snapshot", "replay"])
async def test_a_watcher_that_fell_behind_goes_on_after_what_it_has_seen(
    tmp_path, monkeypatch, how
):
    script = replies(DONE, [Say("x" * 50_000, chunk=100), Halt()])
    async with open_stage(tmp_path, script) as stage:
        await stage.session.prompt("one")
        head = stage.tape()[-1].seq
        after = {"cursor": head, "snapshot": None, "replay": 0}[how]
        async with stage.session.follow(after=after) as feed:
            monkeypatch.setattr(_hub, "FEED_BYTES", 2_000)
            await stage.session.prompt("two")
            monkeypatch.undo()
            seen = []
            with pytest.raises(SlowWatcherError) as slow:
                await note_all(feed, seen)
        assert slow.value.seq == head
        async with stage.session.follow(after=slow.value.seq) as feed:
            seen += await until_idle(feed)
        told = [e.seq for e in seen if isinstance(e, MessagesChanged)]
        first = 1 if how == "replay" else head + 1
        assert told == [
            entry.seq
            for entry in stage.tape()
            if entry.fact.name == "message/recorded" and entry.seq >= first
        ]


async def note_all(feed, seen):
    async for event in feed:
        seen.append(event)


async def test_what_happens_before_a_replay_begins_is_told_once(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        await stage.session.prompt("one")
        async with stage.session.follow(after=0) as feed:
            await stage.session.prompt("two")
            first, rest = await until_idle(feed), await until_idle(feed)
        told = [e.seq for e in first + rest if isinstance(e, MessagesChanged)]
        assert len(told) == 6
        assert told == sorted(set(told))


async def test_text_that_a_new_watcher_is_not_told_costs_it_nothing(tmp_path):
    feed = _hub.Feed("session")  # pyright: ignore[reportArgumentType]
    status = _hub.Told(
        StatusChanged(session_id=feed.session_id, version=1, state="idle")
    )
    for _ in range(3):
        feed.put(status, _hub.FEED_BYTES)
        feed.drop_transient()
    feed.put(status, _hub.FEED_BYTES)
    assert await feed.receive() == [status]


@pytest.mark.parametrize("after", [-1, 1_000])
async def test_a_cursor_that_is_none_of_the_tape_is_refused(tmp_path, after):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        with pytest.raises(UnknownCursorError) as refused:
            async with stage.session.follow(after=after):
                pass
        assert refused.value.code == "unknown_cursor"
        head = len(stage.tape())
        async with stage.session.follow(after=head) as feed:
            assert feed.snapshot is None


async def test_a_cursor_from_before_a_clear_is_refused_however_far_the_tape_is(
    tmp_path,
):
    async with open_stage(tmp_path, replies(DONE, DONE, DONE)) as stage:
        session = stage.session
        await session.prompt("one")
        async with session.follow() as feed:
            assert feed.snapshot is not None
            before = feed.snapshot
        known = {"after": before.seq, "incarnation": before.incarnation}
        async with session.follow(**known) as feed:
            assert feed.snapshot is None
        await session.clear()
        await session.prompt("two")
        await session.prompt("three")
        async with session.follow() as feed:
            assert feed.snapshot is not None
            assert feed.snapshot.seq > before.seq
            assert feed.snapshot.incarnation != before.incarnation
        with pytest.raises(UnknownCursorError, match="was cleared since"):
            async with session.follow(**known):
                pass


async def test_a_replay_does_not_go_on_in_the_tape_that_a_clear_began(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        session = stage.session
        await session.prompt("one")
        async with session.follow(after=0) as feed:
            await session.clear()
            await session.prompt("two")
            with pytest.raises(UnknownCursorError, match="was cleared since"):
                await anext(feed)
        async with session.follow(after=0) as feed:
            await stage.engine.delete_session(session.id)
            assert [event async for event in feed if getattr(event, "seq", 0)] == []


async def test_what_is_too_large_for_the_tape_is_cut_for_everybody_alike(tmp_path):
    probe = Probe(body=large_result)
    # Together too large for a fact.
    call = Call("probe", {"text": "\x01" * 30_000})
    script = replies([call, Halt("tool_use")], DONE)
    async with open_stage(tmp_path, script, probe) as stage:
        turn = await stage.session.prompt("go")
        stored = (await stage.session.messages())[-1]
        assert stored.blocks == turn.message.blocks
        (call,) = calls_of(turn.message)
        assert call.response is not None
        assert "too large to be kept" in call.response
        sent = stage.provider.requests[1].messages[-1]
        assert isinstance(sent, ToolMessage)
        assert sent.text == call.response


async def large_result(arguments, operation):
    await operation.dispatch()
    return ToolResult("\x01" * 200_000)
