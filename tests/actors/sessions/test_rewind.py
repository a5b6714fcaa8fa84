"""A conversation is taken back to the end of a turn, with the files or without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from kit.rehearsal import open_stage, replies
from kit.stores import message
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Hang, Say
from greenroom.actors.sessions import (
    RewindRefusedError,
    Session,
    UnknownCursorError,
)
from greenroom.engine import Grant, SessionHandle
from greenroom.protocol import (
    ActionBlock,
    DiskFullError,
    MessageRetracted,
    MessagesChanged,
    SessionUpdated,
    TextBlock,
)
from greenroom.protocol.context import (
    Reconstruction,
    newest_boundary,
    reconstruction_fact,
)
from greenroom.storage import message_fact

DONE = [Say("done"), Halt()]


def writes(path: str, content: str, call: str = "c"):
    return [
        Call("write", {"path": path, "content": content}, id=call),
        Halt("tool_use"),
    ]


def turns(*texts: str):
    return replies(*(step for n, t in enumerate(texts) for step in _turn(n, t)))


def _turn(number: int, text: str):
    return writes("a.txt", text, f"c{number}"), [Say(f"wrote {text}"), Halt()]


def stage_of(tmp_path, script, **settings):
    return open_stage(
        tmp_path, script, builtin=True, permission_mode="full_access", **settings
    )


def loaded(stage) -> Session:
    found = stage.session._sessions.loaded(stage.session.id)
    assert found is not None
    return found.session


async def until(feed: Any, is_last: Callable[[Any], bool]) -> list[Any]:
    """Return the events up to the first one for which *is_last* holds."""
    seen = []
    async for event in feed:
        seen.append(event)
        if is_last(event):
            return seen
    raise AssertionError("the feed has ended")


def asks(event: Any) -> bool:
    return isinstance(event, MessagesChanged) and any(
        isinstance(block, ActionBlock) and block.status == "pending"
        for block in event.message.blocks
    )


def durable(events: list[Any]) -> list[Any]:
    return [event for event in events if hasattr(event, "seq")]


async def said(session) -> list[str]:
    return [
        block.text
        for message in await session.messages()
        for block in message.blocks
        if isinstance(block, TextBlock)
    ]


def workspace(stage):
    return stage.session.settings.workspace


async def test_what_is_behind_the_message_is_taken_back_and_stays_on_the_tape(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE, DONE, DONE)) as stage:
        for text in ("one", "two", "three"):
            await stage.session.prompt(text)
        first = (await stage.session.messages())[1]
        before = len(stage.tape())
        would = await stage.session.rewind(first.id, dry_run=True)
        assert (would.through, len(would.messages), would.done) == (first.id, 4, False)
        assert len(stage.tape()) == before

        done = await stage.session.rewind(first.id)
        assert done.messages == would.messages
        assert await said(stage.session) == ["one", "done"]
        added = [entry.fact.name for entry in stage.tape()[before:]]
        assert added == ["message/retracted"] * 4 + ["session/rewound"]
        assert stage.names().count("message/recorded") > 6

        await stage.session.prompt("four")
        assert await said(stage.session) == ["one", "done", "four", "done"]
        sent = [type(m).__name__ for m in stage.provider.requests[-1].messages]
        assert sent == ["UserMessage", "AssistantMessage", "UserMessage"]
        # Somebody who loads it sees the same.
        await stage.session.close()
        assert await said(stage.session) == ["one", "done", "four", "done"]
        orders = [m.order_seq for m in await stage.session.messages()]
        assert orders == [1, 2, 3, 4]
    stage.check_laws()


async def test_to_the_beginning_and_again_to_where_it_is(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        await stage.session.prompt("one")
        assert len((await stage.session.rewind(None)).messages) == 2
        assert await stage.session.messages() == []
        head = len(stage.tape())
        assert (await stage.session.rewind(None)).messages == ()
        assert len(stage.tape()) == head
        await stage.session.prompt("two")
        last = (await stage.session.messages())[-1]
        assert (await stage.session.rewind(last.id)).messages == ()
        assert await said(stage.session) == ["two", "done"]
    stage.check_laws()


async def test_only_the_end_of_a_turn_is_a_place(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        await stage.session.prompt("one")
        user, reply = await stage.session.messages()
        with pytest.raises(RewindRefusedError, match=r"not the end of a turn") as bad:
            await stage.session.rewind(user.id)
        assert repr(reply.id) in str(bad.value.hint)
        with pytest.raises(RewindRefusedError) as unknown:
            await stage.session.rewind("nobody")
        assert unknown.value.code == "unknown_message"


async def test_in_a_turn_nothing_is_taken_back(tmp_path, nursery):
    async with open_stage(tmp_path, replies([Say("x"), Hang()])) as stage:
        nursery.start_soon(stage.session.prompt, "one")
        await wait_all_tasks_blocked()
        for call in (lambda: stage.session.rewind(None), stage.session.clear):
            with pytest.raises(RewindRefusedError) as refused:
                await call()
            assert refused.value.code == "turn_active"
        await stage.session.cancel()


async def test_files_are_put_back_first(tmp_path):
    async with stage_of(tmp_path, turns("one", "two", "three")) as stage:
        for text in ("1", "2", "3"):
            await stage.session.prompt(text)
        file = tmp_path / workspace(stage) / "a.txt"
        first = (await stage.session.messages())[1]
        would = await stage.session.rewind(first.id, files=True, dry_run=True)
        (only,) = would.files
        assert (only.path, only.action) == ("a.txt", "restore")
        assert only.diff is not None
        assert (only.diff.old_text, only.diff.new_text) == ("three", "one")
        assert file.read_text() == "three"
        done = await stage.session.rewind(first.id, files=True)
        assert done.files[0].action == "restore"
        assert file.read_text() == "one"
        assert await said(stage.session) == ["1", "wrote one"]
        assert '"files":["a.txt"]' in stage.tape()[-1].fact.payload
        await stage.session.rewind(None, files=True)
        assert not file.exists()
    stage.check_laws()


async def test_a_file_whose_change_was_allowed_first_is_put_back_like_any_other(
    tmp_path,
):
    # One id for both calls, as some models do: each is still counted.
    rounds = writes("a.txt", "one"), writes("a.txt", "two"), DONE
    async with open_stage(tmp_path, replies(*rounds), builtin=True) as stage:
        await allow(stage.session, 2)
        file = tmp_path / workspace(stage) / "a.txt"
        assert file.read_text() == "two"

        would = await stage.session.rewind(None, files=True, dry_run=True)
        assert [(f.path, f.action) for f in would.files] == [("a.txt", "remove")]
        await stage.session.rewind(None, files=True)

        assert not file.exists()
    stage.check_laws()


async def allow(session: SessionHandle, calls: int) -> None:
    """Prompt, and grant so many permissions."""
    async with session.follow() as live, trio.open_nursery() as nursery:
        nursery.start_soon(session.prompt, "1")
        for _ in range(calls):
            await until(live, asks)
            (waits,) = await session.interactions()
            await session.answer(waits.id, Grant())


async def test_what_one_call_changed_is_not_taken_for_what_another_of_its_id_did(
    tmp_path,
):
    rounds = writes("a.txt", "one"), writes("b.txt", "two"), DONE
    async with open_stage(tmp_path, replies(*rounds), builtin=True) as stage:
        await allow(stage.session, 2)
        first, _ = sorted(stage.state.rglob("before/changes/*"))
        first.unlink()
        with pytest.raises(RewindRefusedError, match="is not kept any more"):
            await stage.session.rewind(None, files=True)


async def test_a_file_that_was_changed_since_keeps_the_conversation_too(tmp_path):
    async with stage_of(tmp_path, turns("one")) as stage:
        await stage.session.prompt("1")
        file = tmp_path / workspace(stage) / "a.txt"
        file.write_text("mine")
        head = len(stage.tape())
        with pytest.raises(
            RewindRefusedError, match=r"'a.txt' .it has been"
        ) as refused:
            await stage.session.rewind(None, files=True)
        assert refused.value.code == "files_changed"
        assert (file.read_text(), len(stage.tape())) == ("mine", head)
        would = await stage.session.rewind(None, files=True, dry_run=True)
        assert would.files[0].action == "refused"
        # Without the files it goes.
        await stage.session.rewind(None)
        assert file.read_text() == "mine"


async def test_what_is_not_kept_any_more_is_refused(tmp_path):
    async with stage_of(tmp_path, turns("one")) as stage:
        await stage.session.prompt("1")
        for record in stage.state.rglob("before/changes/*"):
            record.unlink()
        with pytest.raises(RewindRefusedError, match="is not kept any more"):
            await stage.session.rewind(None, files=True)
        assert len(await stage.session.messages()) == 2


async def test_a_rewind_that_could_not_be_written_is_done_by_the_next(
    tmp_path, monkeypatch
):
    async with stage_of(tmp_path, turns("one", "two")) as stage:
        await stage.session.prompt("1")
        await stage.session.prompt("2")
        file = tmp_path / workspace(stage) / "a.txt"
        first = (await stage.session.messages())[1]
        writer: Any = stage.engine._world.writer
        store = type(writer._store)
        real = store.append

        def full(self, grant, head, facts, *args, **kwargs):
            if any(fact.name == "session/rewound" for fact in facts):
                raise DiskFullError("the disk is full")
            return real(self, grant, head, facts, *args, **kwargs)

        monkeypatch.setattr(store, "append", full)
        with pytest.raises(DiskFullError):
            await stage.session.rewind(first.id, files=True)
        monkeypatch.undo()
        assert file.read_text() == "one"
        assert len(await stage.session.messages()) == 4
        done = await stage.session.rewind(first.id, files=True)
        assert [f.action for f in done.files] == ["unchanged"]
        assert await said(stage.session) == ["1", "wrote one"]
    stage.check_laws()


async def test_who_watches_is_told_what_is_taken_back_live_and_after_a_cursor(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE, DONE)) as stage:
        session = stage.session
        first = await session.prompt("one")
        await session.prompt("two")
        gone = [message.id for message in (await session.messages())[2:]]
        cursor = len(stage.tape())
        async with session.follow(after=cursor) as live:
            await session.rewind(first.message.id)
            await session.configure(title="end")
            seen = await until(live, lambda e: isinstance(e, SessionUpdated))
        told = [event for event in seen if isinstance(event, MessageRetracted)]
        assert [event.message_id for event in told] == gone
        assert [event.seq for event in told] == [cursor + 1, cursor + 2]
        async with session.follow(after=cursor) as again:
            replayed = await until(again, lambda e: isinstance(e, SessionUpdated))
        assert durable(replayed) == durable(seen)


async def test_a_transcript_kept_by_events_is_the_session_after_a_rewind(tmp_path):
    async with open_stage(tmp_path, replies(*[DONE] * 3)) as stage:
        session = stage.session
        first = await session.prompt("one")
        async with session.follow() as live:
            assert live.snapshot is not None
            kept = {message.id: message for message in live.snapshot.messages}
            await session.prompt("two")
            await session.rewind(first.message.id)
            await session.prompt("three")
            await session.configure(title="end")
            for event in await until(live, lambda e: isinstance(e, SessionUpdated)):
                match event:
                    case MessagesChanged(message=message):
                        kept[message.id] = message
                    case MessageRetracted(message_id=gone):
                        del kept[gone]
                    case _:
                        pass
        assert list(kept) == [message.id for message in await session.messages()]


async def test_a_command_of_a_message_that_was_taken_back_is_not_taken_again(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE, DONE)) as stage:
        await stage.session.prompt("one", command_id="first")
        await stage.session.prompt("two")
        await stage.session.rewind(None)
        for _ in range(2):
            with pytest.raises(Exception, match=r"first|command"):
                await stage.session.prompt("one", command_id="first")
            await stage.session.close()
        await stage.session.prompt("three")
        assert await said(stage.session) == ["three", "done"]


async def test_more_messages_than_one_append_takes(tmp_path):
    count = 1_100
    async with open_stage(tmp_path, replies(*([DONE] * 3))) as stage:
        await stage.session.prompt("first")
        record = loaded(stage).ports.record
        facts = [
            message_fact(message(str(n), name=f"m{n}", order=3 + n))
            for n in range(count)
        ]
        await record.append_all([facts[:500], facts[500:1_000], facts[1_000:]])
        await stage.session.close()
        first = (await stage.session.messages(before=3))[-1]
        done = await stage.session.rewind(first.id)
        assert len(done.messages) == count
        assert await said(stage.session) == ["first", "done"]
        assert await stage.session.prompt("second")
    stage.check_laws()


#### The checkpoint


async def compacted(stage, cursor: int, summary: str) -> None:
    # As a compaction leaves it, read back by loading the session again.
    record = loaded(stage).ports.record
    last = (await stage.session.messages())[-1].order_seq
    state = Reconstruction(
        cursor_order_seq=cursor, summary=summary, through_order_seq=last
    )
    fact = reconstruction_fact("compaction/manual", state, revision=summary)
    await record.append([fact])
    await stage.session.close()


def sent(stage) -> str:
    return repr(stage.provider.requests[-1].messages)


async def test_a_checkpoint_tells_of_nothing_that_was_taken_back(tmp_path):
    async with open_stage(tmp_path, replies(*([DONE] * 9))) as stage:
        for text in ("one", "two"):
            await stage.session.prompt(text)
        await compacted(stage, 3, "the first summary")
        for text in ("three", "four"):
            await stage.session.prompt(text)
        assert "the first summary" in sent(stage)
        await compacted(stage, 7, "the second summary")
        await stage.session.prompt("five")
        assert "the second summary" in sent(stage)
        messages = await stage.session.messages()

        # Behind both: the second one stays.
        await stage.session.rewind(messages[7].id)
        await stage.session.prompt("six")
        assert "the second summary" in sent(stage)
        # Behind the first alone: that is in force again.
        await stage.session.rewind(messages[3].id)
        for closes in (False, True):
            if closes:
                await stage.session.close()
            await stage.session.prompt("seven")
            assert "the first summary" in sent(stage)
            assert "second summary" not in sent(stage)
        # Before both: all is shown as it is.
        await stage.session.rewind(None)
        await stage.session.close()
        await stage.session.prompt("eight")
        assert "summary" not in sent(stage)
        assert await said(stage.session) == ["eight", "done"]
        boundary = newest_boundary(stage.tape())
        assert boundary is not None
        assert boundary.name == "summary/reset"


#### Clearing


@pytest.mark.contract("TAP-04")
async def test_a_cleared_session_begins_anew_with_its_settings(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE), title="mine") as stage:
        await stage.session.prompt("one", command_id="first")
        before = stage.tape()[0].fact.meta
        async with stage.session.follow(after=len(stage.tape())) as events:
            await stage.session.clear()
            async for event in events:
                assert not hasattr(event, "seq")
        assert stage.names() == ["session/start", "session/configured"]
        assert stage.tape()[0].fact.meta != before
        assert stage.session.settings is not None
        assert stage.session.settings.title == "mine"
        assert await stage.session.messages() == []
        with pytest.raises(UnknownCursorError):
            async with stage.session.follow(after=9):
                pass
        await stage.session.prompt("two")
        assert await said(stage.session) == ["two", "done"]
        assert "one" not in sent(stage)
        await stage.session.close()
        assert await said(stage.session) == ["two", "done"]
    stage.check_laws()


@pytest.mark.contract("PIN-13")
async def test_nothing_is_taken_back_behind_an_input_that_waits(tmp_path, nursery):
    async with open_stage(tmp_path, replies([Say("x"), Hang()], DONE)) as stage:
        nursery.start_soon(stage.session.prompt, "one")
        await wait_all_tasks_blocked()
        await stage.session.queue("two", command_id="waits")
        # What the user stopped holds what was queued behind it.
        await stage.session.cancel()
        (row,) = await stage.session.inputs()
        assert (row.state, row.held) == ("pending", True)
        await refuses_every_edit(stage, "input_waits")
        await stage.session.delete_input("waits")
        await stage.session.clear()
        assert stage.names() == ["session/start", "session/configured"]
        await stage.session.prompt("three")
        assert await said(stage.session) == ["three", "done"]
    stage.check_laws()


@pytest.mark.contract("PIN-13")
async def test_nothing_is_taken_back_behind_an_input_on_its_way(tmp_path, nursery):
    script = replies(DONE, [Say("x"), Hang()])
    async with open_stage(tmp_path, script) as stage:
        await stage.session.prompt("one")
        await stage.session.queue("two")
        await wait_all_tasks_blocked()
        (row,) = await stage.session.inputs()
        assert row.state == "claimed"
        await refuses_every_edit(stage, "turn_active")
        await stage.session.cancel()
    stage.check_laws()


@pytest.mark.contract("PIN-13")
async def test_a_command_that_is_no_row_yet_is_an_input_that_waits(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("one")
        store = stage.engine._world.readers._reader  # type: ignore[attr-defined]
        store.post(stage.session.id, "late", '{"kind":"odd"}', now=1.0)
        await refuses_every_edit(stage, "input_waits")
        assert await said(stage.session) == ["one", "done"]


async def refuses_every_edit(stage, code):
    # A retry is a rewind to before the message, and a prompt.
    before = stage.tape(), await stage.session.inputs(), await stage.session.messages()
    first = before[2][0].id
    for edit in (
        lambda: stage.session.rewind(None),
        lambda: stage.session.rewind(first, files=True),
        lambda: stage.session.rewind(None, dry_run=True),
        stage.session.clear,
    ):
        with pytest.raises(RewindRefusedError) as refused:
            await edit()
        assert refused.value.code == code
        assert refused.value.hint
    after = stage.tape(), await stage.session.inputs(), await stage.session.messages()
    assert after == before
