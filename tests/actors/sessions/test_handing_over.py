"""A follower that hands over to a sink: first what was, then what happens, once."""

from __future__ import annotations

from itertools import pairwise

import attrs
import pytest
import trio
from kit.rehearsal import open_stage, replies
from trio.testing import assert_checkpoints

from greenroom.actors.providers import Halt, Say
from greenroom.actors.sessions import Follower, SlowWatcherError, Told, _follow, _hub
from greenroom.protocol import PlanUpdated, SessionId, StatusChanged, events_of
from greenroom.protocol._events import Plan

DONE = [Say("done"), Halt()]


@attrs.define(eq=False)
class Sink:
    told: list[Told] = attrs.field(factory=list)
    ends: int = 0

    def put(self, told: Told) -> None:
        self.told.append(told)

    def end(self) -> None:
        self.ends += 1

    def seqs(self):
        return [told.seq for told in self.told if told.seq is not None]


async def no_limit() -> None:
    pass


def plan(session_id, seq):
    return PlanUpdated(session_id=session_id, seq=seq, plan=Plan(1, ()))


@attrs.define(eq=False)
class Followed:
    hub: _hub.Hub
    feed: _hub.Feed
    follower: Follower
    seqs: list[int]
    """Of every event of the tape."""
    head: int


async def followed(stage) -> Followed:
    await stage.session.prompt("one")
    hub = _hub.Hub(stage.session.id)
    feed = hub.open_feed()
    head, begun = stage.tape()[-1].seq, stage.tape()[0].fact.source_id
    readers = stage.session._readers
    follower = Follower(
        None, begun, feed, readers, 0, head, lambda: hub.drop_feed(feed)
    )
    events = [event for entry in stage.tape() for event in events_of(entry)]
    seqs = [seq for e in events if (seq := Told(e).seq) is not None]
    return Followed(hub, feed, follower, seqs, head)


async def test_what_was_replayed_and_is_published_late_is_told_once(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        it, sink = await followed(stage), Sink()
        it.hub.publish(plan(stage.session.id, it.head))
        await it.follower.hand_over(sink, no_limit)
        it.hub.publish(plan(stage.session.id, it.head))
        it.hub.publish(plan(stage.session.id, it.head + 1))
        assert sink.seqs() == [*it.seqs, it.head + 1]


async def test_what_happens_while_it_replays_comes_after_it_and_in_order(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        it, sink = await followed(stage), Sink()
        later = iter(range(it.head + 1, it.head + 4))

        async def room():
            for seq in later:
                it.hub.publish(plan(stage.session.id, seq))
                return

        await it.follower.hand_over(sink, room)
        it.hub.publish(plan(stage.session.id, it.head + 4))
        news = [it.head + 1, it.head + 2, it.head + 3, it.head + 4]
        assert sink.seqs() == [*it.seqs, *news]


async def test_a_live_sink_is_called_by_who_publishes(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        it, sink = await followed(stage), Sink()
        with assert_checkpoints():
            await it.follower.hand_over(sink, no_limit)
        status = it.hub.status_event()
        it.hub.publish(status)
        assert isinstance(sink.told[-1].event, StatusChanged)
        assert sink.told[-1].event is status


async def test_a_sink_is_told_that_the_session_is_gone_but_not_that_it_left(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        it, sink = await followed(stage), Sink()
        await it.follower.hand_over(sink, no_limit)
        it.hub.close()
        assert sink.ends == 1
        it, sink = await followed_again(stage), Sink()
        await it.follower.hand_over(sink, no_limit)
        it.follower.close()
        it.hub.publish(it.hub.status_event())
        assert (sink.ends, it.hub.watched) == (0, False)


async def followed_again(stage) -> Followed:
    hub = _hub.Hub(stage.session.id)
    feed, begun = hub.open_feed(), stage.tape()[0].fact.source_id
    readers = stage.session._readers
    follower = Follower(None, begun, feed, readers, 0, 1, lambda: hub.drop_feed(feed))
    return Followed(hub, feed, follower, [], 1)


async def test_a_sink_of_a_session_that_ended_before_is_told_what_was_and_the_end(
    tmp_path,
):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        it, sink = await followed(stage), Sink()
        it.hub.close()
        await it.follower.hand_over(sink, no_limit)
        assert (sink.seqs(), sink.ends) == (it.seqs, 1)


async def test_a_sink_gets_a_slice_at_a_time_and_only_when_it_has_room(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(_follow, "SLICE", 2)
    async with open_stage(tmp_path, replies(DONE)) as stage:
        it, sink = await followed(stage), Sink()
        sizes = [0]

        async def room():
            await trio.lowlevel.checkpoint()
            sizes.append(len(sink.told))

        await it.follower.hand_over(sink, room)
        steps = [after - before for before, after in pairwise(sizes)]
        assert max(steps) == 2
        assert sink.seqs() == it.seqs


async def test_what_the_feed_has_no_room_for_is_told_with_where_to_go_on(
    tmp_path, monkeypatch
):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        it, sink = await followed(stage), Sink()
        monkeypatch.setattr(_hub, "FEED_BYTES", 10)
        it.hub.publish(plan(stage.session.id, it.head + 1))
        with pytest.raises(SlowWatcherError) as slow:
            await it.follower.hand_over(sink, no_limit)
        assert (slow.value.seq, sink.seqs()) == (it.head, it.seqs)


async def test_an_event_is_encoded_once_for_all_who_watch(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        hub = _hub.Hub(stage.session.id)
        sinks = Sink(), Sink()
        for sink in sinks:
            hub.open_feed().hand_over(sink)
        hub.publish(hub.status_event())
        (one,), (two,) = (sink.told for sink in sinks)
        assert one is two
        assert one.json is two.json


def test_what_was_taken_counts_no_longer_against_the_budget():
    feed = _hub.Feed(SessionId("s"))
    half = _hub.FEED_BYTES // 2
    for size in (half, half, half):
        feed.put(Told(plan("s", 1)), size)
        assert feed.take(1)
    feed.put(Told(plan("s", 2)), half)
    feed.put(Told(plan("s", 3)), half)
    assert [told.seq for told in feed.take(1)] == [2]
    # What still waits counts.
    feed.put(Told(plan("s", 4)), half + 1)
    with pytest.raises(SlowWatcherError):
        feed.hand_over(Sink())
