"""What is kept of a message in progress, in case the process dies (PER-05)."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise

import attrs
import msgspec
import pytest
import trio
from kit.rehearsal import Probe, open_stage, replies
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Hang, Pause, Say
from greenroom.protocol import DiskFullError, SessionId, StreamUpdated, TextBlock
from greenroom.storage import Piece, open_reader

FLUSH_SECONDS = 0.6


def cached(stage):
    """The cached blocks of the newest message."""
    with closing(open_reader(stage.state)) as reader:
        session_id = SessionId(stage.session.id)
        (message,) = reader.messages(session_id, None, 1)
        text = reader.cached_blocks(session_id, message.id)
    return [] if text is None else msgspec.json.decode(text)


async def test_text_is_kept_within_one_flush_and_only_when_it_grew(
    tmp_path, autojump_clock: MockClock, caplog
):
    script = replies([Say("first"), Pause(1), Say(" second"), Hang()])
    async with open_stage(tmp_path, script) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await trio.sleep(FLUSH_SECONDS - 0.01)
            assert cached(stage) == []
            await trio.sleep(0.02)
            assert [block["text"] for block in cached(stage)] == ["first"]
            await trio.sleep(2 * FLUSH_SECONDS)
            assert [block["text"] for block in cached(stage)] == ["first second"]
            await stage.session.cancel()
        assert cached(stage) == []
    assert not caplog.records


async def test_what_the_tape_has_is_not_kept_again(
    tmp_path, autojump_clock: MockClock, caplog
):
    # Together the results are larger than what is kept at once.
    ask = [Call("probe"), Halt("tool_use")]
    probe = Probe(result="x" * 90_000)
    rounds = [[Call("probe", {"n": n}), Halt("tool_use")] for n in range(14)]
    script = replies(ask, *rounds, [Say("and now"), Hang()])
    async with (
        open_stage(tmp_path, script, probe) as stage,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stage.session.prompt, "go")
        await trio.sleep(2 * FLUSH_SECONDS)
        assert [block["text"] for block in cached(stage)] == ["and now"]
        await stage.session.cancel()
    assert not caplog.records


async def test_a_flood_in_one_reply_is_kept_as_far_as_it_fits(
    tmp_path, autojump_clock: MockClock, caplog
):
    flood = [Say(f"{n}" * 90_000) for n in range(10)]
    async with open_stage(tmp_path, replies([*flood, Hang()])) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await trio.sleep(FLUSH_SECONDS + 0.01)
            assert cached(stage)[0]["text"].startswith("000")
            await stage.session.cancel()
        (_, message) = await stage.session.messages()
        texts = [b.text for b in message.blocks if isinstance(b, TextBlock)]
        assert sum(map(len, texts)) == 10 * 90_000
    await wait_all_tasks_blocked()
    assert not caplog.records


class CountedCache:
    """A record that counts what is kept of blocks, and may fail to."""

    def __init__(self, inner, *, fails=False):
        self.inner, self.fails, self.times = inner, fails, []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def cache_soon(self, message_id, blocks):
        self.times.append(trio.current_time())
        if self.fails:
            self.inner._soon(FAILING, "blocks")
        else:
            self.inner.cache_soon(message_id, blocks)


def _fail(_):
    raise DiskFullError("the disk is full")


FAILING = Piece(_fail)


def count_cache(stage, *, fails=False):
    behaviour = stage.session._sessions.loaded(stage.session.id).session
    counted = CountedCache(behaviour.ports.record, fails=fails)
    behaviour.ports = attrs.evolve(behaviour.ports, record=counted)
    return counted


@pytest.mark.contract("PER-05")
async def test_a_fast_stream_is_kept_every_interval_and_shown_sooner(
    tmp_path, autojump_clock: MockClock
):
    fast = [cue for n in range(300) for cue in (Say(f"{n} "), Pause(0.01))]
    script = replies([*fast, Pause(5), Halt()])
    shown: list[float] = []
    async with open_stage(tmp_path, script) as stage:
        counted = count_cache(stage)
        began = trio.current_time()
        async with trio.open_nursery() as nursery, stage.session.follow() as feed:
            nursery.start_soon(stage.session.prompt, "go")
            async for event in feed:
                if isinstance(event, StreamUpdated):
                    shown.append(trio.current_time() - began)
                if len(shown) > 1 and shown[-1] > 2.9:
                    break
        await trio.sleep(10)
    # Three seconds of words, then five of nothing; nothing after the end.
    assert [round(at - began, 1) for at in counted.times] == [0.6, 1.2, 1.8, 2.4, 3.0]
    gaps = [b - a for a, b in pairwise(shown)]
    assert max(gaps) <= 0.120
    assert len(shown) <= 3 / 0.020 + 1


@pytest.mark.contract("PER-05")
async def test_blocks_that_can_t_be_kept_are_logged_and_the_turn_goes_on(
    tmp_path, autojump_clock: MockClock, caplog
):
    script = replies([Say("one"), Pause(2), Say(" two"), Pause(2), Halt()])
    async with open_stage(tmp_path, script) as stage:
        counted = count_cache(stage, fails=True)
        assert (await stage.session.prompt("go")).text == "one two"
    assert len(counted.times) > 1
    assert all("were not kept: the disk is full" in r.message for r in caplog.records)
    assert caplog.records
