"""What is kept of a message in progress, in case the process dies (PER-05)."""

from __future__ import annotations

from contextlib import closing

import msgspec
import trio
from kit.rehearsal import Probe, open_stage, replies
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Hang, Pause, Say
from greenroom.protocol import SessionId, TextBlock
from greenroom.storage import open_reader

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
