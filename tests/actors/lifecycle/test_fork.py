"""Forks: what is copied, what is not, and that nothing is shared."""

from __future__ import annotations

import os
import shutil
from contextlib import closing, suppress
from errno import ENOSPC
from os import strerror
from pathlib import Path
from typing import Any

import pytest
import trio
from kit.gateway import connected, served
from kit.rehearsal import Probe, Stage, calls_of, open_stage, read_tape, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.gates import BeingDeletedError
from greenroom.actors.tools import ToolResult, kept_output
from greenroom.engine import (
    MessageNotFoundError,
    RoundNotFoundError,
    SessionNotFoundError,
)
from greenroom.protocol import (
    ActionBlock,
    AgentNotFoundError,
    AgentRefusedError,
    ErrorBlock,
    ItemId,
    MessageId,
    MessageMetadata,
    MessageRecord,
    OperationId,
    RunId,
    SessionId,
    StorageError,
    TextBlock,
    ToolCallBlock,
    fork_title,
    forked_message,
)
from greenroom.storage import open_reader, open_store
from greenroom.testing import Call, Fail, Halt, Hang, Say

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


def texts(messages: list[MessageRecord]) -> list[tuple[int, str, str]]:
    return [
        (
            message.order_seq,
            message.role,
            "".join(b.text for b in message.blocks if isinstance(b, TextBlock)),
        )
        for message in messages
    ]


@pytest.mark.contract("SES-23")
async def test_a_fork_has_what_was_sent_up_to_a_message_and_nothing_else(
    tmp_path: Path,
) -> None:
    script = replies(
        [Say("one"), Halt()],
        [Fail("broken", code="bad", status=400)],
        [Say("three"), Halt()],
        [Say("four"), Halt()],
        [Say("half"), Hang()],
    )
    async with open_stage(tmp_path, script, title="a title") as stage:
        source = stage.session
        for n in range(1, 5):
            await source.prompt(f"prompt {n}")
        before = await source.messages()
        assert [m.status for m in before].count("error") == 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.prompt, "prompt 5")
            await wait_all_tasks_blocked()
            tape = read_tape(stage.state, source.id)
            made = await stage.engine.fork_session(source.id, through=before[5].id)
            whole = await stage.engine.fork_session(source.id)
            assert read_tape(stage.state, source.id) == tape
            await source.cancel()
        assert texts(await made.messages()) == [
            (1, "user", "prompt 1"),
            (2, "assistant", "one"),
            (3, "user", "prompt 2"),
            (4, "user", "prompt 3"),
            (5, "assistant", "three"),
        ]
        assert [text for *_, text in texts(await whole.messages())] == [
            "prompt 1",
            "one",
            "prompt 2",
            "prompt 3",
            "three",
            "prompt 4",
            "four",
            "prompt 5",
        ]
        rows = {row.id: row for row in await stage.engine.sessions()}
        assert rows[made.id].settings.title == "a title - Fork"
        assert rows[made.id].input_tokens is None


@pytest.mark.contract("SES-23")
@pytest.mark.parametrize(
    ("title", "wanted"),
    [("t", "t - Fork"), ("x" * 53, "x" * 53 + " - Fork"), ("x" * 60, "x" * 60)],
)
def test_a_title_gets_a_suffix_within_sixty_characters(title: str, wanted: str) -> None:
    assert fork_title(title) == wanted
    assert fork_title(title + "y" * 100) == (title + "y" * 100)[:60]


async def test_a_fork_goes_on_by_itself_with_limits_and_mode_of_its_source(
    tmp_path: Path,
) -> None:
    script = replies(ASK, [Say("one"), Halt()], [Say("two"), Halt()])
    async with open_stage(
        tmp_path, script, Probe(), permission_mode="auto_approve", max_rounds=7
    ) as stage:
        await stage.session.prompt("first")
        made = await stage.engine.fork_session(stage.session.id)
        assert (await made.prompt("second")).text == "two"
        settings = made.settings
        assert settings is not None
        assert (settings.permission_mode, settings.max_rounds) == ("auto_approve", 7)
        said = stage.provider.requests[-1].messages
        assert [type(m).__name__ for m in said] == [
            "UserMessage",
            "AssistantMessage",
            "ToolMessage",
            "AssistantMessage",
            "UserMessage",
        ]
        old, new = await stage.session.messages(), await made.messages()
        assert len(old) == 2
        ids = [
            {i for m in each for i in (m.id, *(b.id for b in m.blocks))}
            for each in (old, new)
        ]
        assert not ids[0] & ids[1]
        (call,) = calls_of(new[1])
        assert call.status == "success"
        assert new[1].metadata.run_id is None
        # Neither is there for the other: one goes, one stays.
        await stage.engine.delete_session(stage.session.id)
        assert len(await made.messages()) == 4


def record(*blocks: Any, **metadata: Any) -> MessageRecord:
    return MessageRecord(
        id=MessageId("old"),
        order_seq=9,
        role="assistant",
        status="sent",
        blocks=blocks,
        metadata=MessageMetadata(**metadata),
        created_at=1.0,
        updated_at=2.0,
    )


def call_block(status: Any, response: str | None) -> ToolCallBlock:
    doubt = OperationId(RunId("r"), 1, "c")
    return ToolCallBlock(
        id=ItemId("old.1"),
        call_id="c",
        name="t",
        arguments="{}",
        status=status,
        response=response,
        in_doubt=doubt,
    )


def test_what_is_open_in_a_copy_is_closed() -> None:
    action = ActionBlock(
        id=ItemId("old.2"),
        action="tool_call_permission",
        origin="pre-check-permission",
        tool_block_id=ItemId("old.1"),
        title="?",
        expires_at=5.0,
    )
    error = ErrorBlock(id=ItemId("other"), code="x", text="y")
    made = forked_message(
        record(call_block("loading", None), action, error, run_id=RunId("r"), cost=1.0),
        MessageId("new"),
        3,
    )
    call, asked, told = made.blocks
    assert isinstance(call, ToolCallBlock)
    assert isinstance(asked, ActionBlock)
    assert (made.id, made.order_seq, made.status) == ("new", 3, "sent")
    assert (call.id, call.status, call.in_doubt) == ("new.1", "error", None)
    assert "forked before" in (call.response or "")
    assert (asked.id, asked.tool_block_id) == ("new.2", "new.1")
    assert (asked.status, asked.end, asked.expires_at) == ("error", "interrupted", None)
    assert told.id == "other"
    assert (made.metadata.run_id, made.metadata.cost) == (None, None)


def test_a_finished_call_is_copied_as_it_was() -> None:
    made = forked_message(record(call_block("success", "ok")), MessageId("new"), 1)
    (call,) = made.blocks
    assert isinstance(call, ToolCallBlock)
    assert (call.status, call.response, call.in_doubt) == ("success", "ok", None)


async def test_a_fork_in_the_middle_of_a_batch_waits_for_nobody(tmp_path: Path) -> None:
    gate = trio.Event()

    async def block(_: Any, operation: Any) -> Any:
        await operation.dispatch()
        await gate.wait()

    script = replies([Say("before"), Halt()], ASK, [Say("after"), Halt()])
    async with open_stage(tmp_path, script, Probe(body=block)) as stage:
        await stage.session.prompt("first")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "second")
            await wait_all_tasks_blocked()
            made = await stage.engine.fork_session(stage.session.id)
            assert (await made.prompt("third")).text == "after"
            assert await made.interactions() == ()
            await stage.session.cancel()


async def test_a_fork_may_end_with_a_round_of_an_answer(tmp_path: Path) -> None:
    script = replies(ASK, [Call("probe", {"n": 2}), Halt("tool_use")], DONE, DONE)
    async with open_stage(
        tmp_path, script, Probe(), permission_mode="auto_approve"
    ) as stage:
        fork, source = stage.engine.fork_session, stage.session.id
        await stage.session.prompt("go")
        user, answer = await stage.session.messages()
        made = await fork(source, through=answer.id, rounds=1)
        _, cut = await made.messages()
        (call,) = calls_of(cut)
        assert (call.arguments, call.status) == ('{"n":1}', "success")
        assert (cut.status, cut.metadata.provider_rounds) == ("sent", 1)
        assert cut.metadata.run_outcome is None
        await made.prompt("on")
        said = stage.provider.requests[-1].messages
        assert [type(m).__name__ for m in said] == [
            "UserMessage",
            "AssistantMessage",
            "ToolMessage",
            "UserMessage",
        ]
        whole = await fork(source, through=answer.id, rounds=3)
        assert (await whole.messages())[1].metadata.run_outcome == "completed"
        for through, rounds in (
            (answer.id, 0),
            (answer.id, 4),
            (user.id, 1),
            (None, 1),
        ):
            with pytest.raises(RoundNotFoundError):
                await fork(source, through=through, rounds=rounds)
        assert len(await stage.engine.sessions()) == 3


NAMES = ["kept.txt", "gone.txt", "link.txt", "folder.txt", "a/b.txt"]


async def keep(_: Any, operation: Any) -> ToolResult:
    await operation.dispatch()
    scratch: Path = operation.context.scratch
    kept = await kept_output("a long output", scratch / "kept.txt")
    (scratch / "link.txt").symlink_to(scratch / "kept.txt")
    (scratch / "other.txt").write_text("named by nobody")
    (scratch / "folder.txt").mkdir()
    named = [str(scratch / name) for name in NAMES]
    return ToolResult("\n".join([kept.text, *named]))


def response_of(messages: list[MessageRecord]) -> str:
    (call,) = calls_of(messages[1])
    assert call.response is not None
    return call.response


async def test_a_client_forks_at_a_round_of_an_answer(tmp_path: Path) -> None:
    async with (
        open_stage(
            tmp_path, replies(ASK, DONE), Probe(), permission_mode="auto_approve"
        ) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        await stage.session.prompt("go")
        _, answer = await stage.session.messages()
        asked = {"sessionId": stage.session.id, "through": answer.id, "rounds": 1}
        made = (await client.call("_greenroom/session/fork", **asked))["session"]
        _, cut = await stage.engine.session(made["id"]).messages()
        (call,) = calls_of(cut)
        assert (call.arguments, call.status) == ('{"n":1}', "success")
        assert (cut.metadata.provider_rounds, cut.metadata.run_outcome) == (1, None)


async def test_a_fork_has_the_outputs_it_names_also_without_its_source(
    tmp_path: Path,
) -> None:
    async with open_stage(
        tmp_path, replies(ASK, DONE), Probe(body=keep), permission_mode="auto_approve"
    ) as stage:
        await stage.session.prompt("go")
        first = await stage.engine.fork_session(stage.session.id)
        made = await stage.engine.fork_session(first.id)
        scratch = stage.state / "scratch"
        old, new = scratch / first.id, scratch / made.id
        assert response_of(await made.messages()).splitlines() == [
            f"[the output has 13 characters; it is kept in {new / 'kept.txt'}]",
            "a long output",
            str(new / "kept.txt"),
            # What there is no file of is named as before.
            *(str(scratch / stage.session.id / name) for name in NAMES[1:]),
        ]
        (old / "kept.txt").write_text("changed")
        await stage.engine.delete_session(stage.session.id)
        await stage.engine.delete_session(first.id)
        assert [path.name for path in new.iterdir()] == ["kept.txt"]
        assert (new / "kept.txt").read_text() == "a long output"
        assert (new / "kept.txt").stat().st_mode & 0o777 == 0o600


async def test_a_fork_whose_files_can_t_be_copied_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_source: Any, copy: Any) -> None:
        copy.write(b"a lo")
        raise OSError(ENOSPC, strerror(ENOSPC))

    async with open_stage(
        tmp_path, replies(ASK, DONE), Probe(body=keep), permission_mode="auto_approve"
    ) as stage:
        await stage.session.prompt("go")
        monkeypatch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(StorageError, match=r"can't be copied to .* No space left"):
            await stage.engine.fork_session(stage.session.id)
        assert scopes(stage) == [stage.session.id]
        assert os.listdir(stage.state / "scratch") == [stage.session.id]


async def test_many_messages_are_copied_in_batches_and_in_order(tmp_path: Path) -> None:
    script = replies(*[DONE] * 55)
    async with open_stage(tmp_path, script) as stage:
        for n in range(55):
            await stage.session.prompt(f"prompt {n}")
        made = await stage.engine.fork_session(stage.session.id)
        copied = await made.messages(limit=500)
        assert [m.order_seq for m in copied] == list(range(1, 111))
        assert [t for *_, t in texts(copied)][::2] == [f"prompt {n}" for n in range(55)]


@pytest.mark.contract("SES-23")
async def test_a_fork_goes_through_the_gate_of_its_agent(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replies(DONE)) as stage:
        engine = stage.engine
        agent = await engine.agents.create("mine")
        source = await engine.create_session(workspace=tmp_path, agent=agent)
        await source.prompt("go")
        async with engine.agents.gates.deletion(agent):
            with pytest.raises(BeingDeletedError):
                await engine.fork_session(source.id)
        await engine.agents.describe(agent, enabled=False)
        with pytest.raises(AgentRefusedError):
            await engine.fork_session(source.id)
        await engine.agents.describe(agent, enabled=True)
        await source.close()
        with closing(open_store(stage.state)) as store:
            store.drop_agent(agent)
        with pytest.raises(AgentNotFoundError):
            await engine.fork_session(source.id)
        with pytest.raises(SessionNotFoundError):
            await engine.fork_session("nobody")
        with pytest.raises(MessageNotFoundError):
            await engine.fork_session(stage.session.id, through="nothing")


def scopes(stage: Stage) -> list[SessionId]:
    with closing(open_reader(stage.state)) as reader:
        return [s for s in reader.scopes() if reader.page(s, 0).entries]


@pytest.mark.parametrize("fails_at", range(1, 6))
@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_fork_that_is_cut_off_leaves_nothing(
    tmp_path: Path, fails_at: int, cancelled: bool
) -> None:
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("go")
        world, tape = stage.engine._world, stage.tape()
        inner, count = world.writer, 0

        class Failing:
            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

            async def submit(self, piece: Any, told: Any = None) -> Any:
                nonlocal count
                count += 1
                if count != fails_at:
                    return await inner.submit(piece, told)
                if cancelled:
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
                raise StorageError("no")

        object.__setattr__(world, "writer", Failing())
        made = None
        with trio.CancelScope() as scope, suppress(StorageError):
            made = await stage.engine.fork_session(stage.session.id)
        object.__setattr__(world, "writer", inner)
        # Pieces: taken, begun, copied, finished, given back.
        assert (made is not None) == (fails_at == 5 and not cancelled) or cancelled
        rows = [row.id for row in await stage.engine.sessions()]
        if fails_at < 5:
            assert rows == [stage.session.id]
            assert scopes(stage) == [stage.session.id]
        else:
            assert len(rows) == 2
        assert stage.tape() == tape


async def test_an_agent_removed_by_another_engine_meanwhile_gets_no_fork(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, replies()) as stage:
        engine = stage.engine
        agent = await engine.agents.create("mine")
        source = await engine.create_session(workspace=tmp_path, agent=agent)
        writer: Any = engine._world.writer
        store, append = writer._store, type(writer._store).append
        dropped = False

        def drop_first(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal dropped
            if not dropped:
                dropped = True
                store.drop_agent(agent)
            return append(self, *args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(store), "append", drop_first)
            with pytest.raises(AgentNotFoundError):
                await engine.fork_session(source.id)
        assert {row.id for row in await engine.sessions()} == {
            stage.session.id,
            source.id,
        }
