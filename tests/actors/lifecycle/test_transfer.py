"""Sessions that change hands: judged first, then all of it in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
import trio
from kit.held import HeldAppend
from kit.rehearsal import Probe, Stage, calls_of, open_stage, read_tape, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.gates import BeingDeletedError
from greenroom.actors.lifecycle import Stages
from greenroom.engine import (
    Engine,
    MoveError,
    SessionHandle,
    SessionHeldError,
    SessionNotFoundError,
    TransferRefusedError,
)
from greenroom.protocol import (
    AgentNotFoundError,
    AgentRefusedError,
    AgentUnavailableError,
    SessionId,
    SessionUpdated,
    SkillRecord,
    SkillState,
    StorageError,
    with_binding,
    with_skill,
)
from greenroom.storage import SessionRow, open_reader, put_skill_state
from greenroom.testing import Call, Halt, RehearsalProvider, Say, open_test_engine

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


def store_of(engine: Engine) -> Any:
    writer: Any = engine._world.writer
    return writer._store


def row_of(stage: Stage, session_id: str) -> SessionRow:
    with closing(open_reader(stage.state)) as reader:
        row = reader.session(SessionId(session_id))
    assert row is not None
    return row


def whole(stage: Stage, session_id: str) -> tuple[Any, ...]:
    """All that a transfer could touch, as it is on disk."""
    with closing(open_reader(stage.state)) as reader:
        selection = reader.skill_selection(SessionId(session_id))
    return row_of(stage, session_id), read_tape(stage.state, session_id), selection


@attrs.define(eq=False)
class Family:
    """Who works for whom, as told."""

    tree: dict[str, Sequence[str]] = attrs.field(factory=dict)

    async def interrupt(self, session_id: SessionId) -> None:
        pass

    async def children(self, session_id: SessionId) -> Sequence[SessionId]:
        return [SessionId(child) for child in self.tree.get(session_id, ())]

    async def is_child(self, session_id: SessionId) -> bool:
        return any(session_id in each for each in self.tree.values())


def relate(engine: Engine, **tree: Sequence[str]) -> None:
    engine._lifecycle.deletion.stages = Stages(delegation=Family(dict(tree)))


CONFIG = {
    "permissionMode": "full_access",
    "systemPrompt": "another prompt",
    "disabledTools": ["probe"],
    "defaultModel": {"provider": "rehearsal", "model": "another"},
}


async def target_of(engine: Engine, folder: Path) -> str:
    config = CONFIG | {"projectPath": str(folder)}
    return await engine.agents.create("target", config=config)


@pytest.mark.contract("DEL-11")
@pytest.mark.parametrize("loaded", [False, True])
async def test_all_that_is_the_agent_s_goes_over_together(
    tmp_path: Path, loaded: bool
) -> None:
    script = replies([Say("one"), Halt()], ASK, [Say("two"), Halt()])
    async with open_stage(tmp_path, script, Probe(), title="kept") as stage:
        session, engine = stage.session, stage.engine
        await session.prompt("first")
        await session.configure(temperature=0.5, system_prompt="mine", max_rounds=9)
        target = await target_of(engine, tmp_path)
        select_skills(stage, session.id, target)
        if not loaded:
            await session.close()
        moved = await engine.move_session(session.id, target)
        row = row_of(stage, session.id)
        assert row.settings == moved
        assert (moved.agent_id, moved.model) == (target, "another")
        assert moved.workspace == str(tmp_path)
        assert moved.permission_mode == "full_access"
        assert moved.system_prompt == "another prompt"
        assert moved.disabled_tools == ("probe",)
        assert (moved.title, moved.temperature, moved.max_rounds) == ("kept", 0.5, 9)
        with closing(open_reader(stage.state)) as reader:
            # What was selected, of what the new agent has.
            assert reader.skill_selection(session.id) == ("both",)
        await session.prompt("second")
        (call,) = calls_of((await session.messages())[3])
        assert "is disabled here" in (call.response or "")
        request = stage.provider.requests[-1]
        assert (request.model, request.tools) == ("another", ())
        assert "another prompt" in str(request.messages[0])


def select_skills(stage: Stage, session_id: str, target: str) -> None:
    state, store = SkillState(), store_of(stage.engine)
    for name in ("both", "source-only", "target-only"):
        state = with_skill(state, SkillRecord(name=name, path=name, source="x"))
    for agent_id, name in [
        ("default", "both"),
        ("default", "source-only"),
        (target, "both"),
        (target, "target-only"),
    ]:
        state = with_binding(state, agent_id, name, assigned=True)
    put_skill_state(store, state, 0.0)
    store.put_skill_selection(SessionId(session_id), ["both", "source-only"])


#### What is judged


async def refused(engine: Engine, session_id: str, target: str) -> str:
    with pytest.raises(TransferRefusedError) as caught:
        await engine.move_session(session_id, target)
    return caught.value.code


@pytest.mark.contract("DEL-10")
async def test_who_may_not_go_stays_as_it_is(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replies(DONE)) as stage:
        engine, session = stage.engine, stage.session
        target = await target_of(engine, tmp_path)
        disabled = await engine.agents.create("disabled")
        await engine.agents.describe(disabled, enabled=False)
        foreign = await engine.agents.create_acp("acp", "cmd")
        broken = await engine.agents.create("broken")
        row = store_of(engine).agent(broken)
        store_of(engine).put_agent(msgspec.structs.replace(row, config="{", kind="x"))
        store_of(engine).put_skill_selection(session.id, ["a"])
        before = whole(stage, session.id)
        assert await refused(engine, session.id, "default") == "same-agent"
        assert await refused(engine, session.id, foreign) == "acp-target"
        for agent, error in [
            ("nobody", AgentNotFoundError),
            (disabled, AgentRefusedError),
            (broken, AgentUnavailableError),
        ]:
            with pytest.raises(error):
                await engine.move_session(session.id, agent)
        with pytest.raises(SessionNotFoundError):
            await engine.move_session("nobody", target)
        relate(engine, parent=[session.id])
        assert await refused(engine, session.id, target) == "not-regular"
        assert whole(stage, session.id) == before
        transfers = engine._lifecycle.transfers
        assert (
            await transfers.transfer(session.id, target, bulk=True)
        ).agent_id == target


@pytest.mark.contract("DEL-10")
async def test_a_session_that_works_or_waits_stays(tmp_path: Path) -> None:
    async with (
        open_stage(tmp_path, replies(ASK, DONE), Probe(permission="?")) as stage,
        trio.open_nursery() as nursery,
    ):
        engine, session = stage.engine, stage.session
        target = await target_of(engine, tmp_path)
        nursery.start_soon(session.prompt, "go")
        assert await refused(engine, session.id, target) == "active"
        await wait_all_tasks_blocked()
        # Now it waits for an answer.
        before = whole(stage, session.id)
        assert await refused(engine, session.id, target) == "active"
        assert whole(stage, session.id) == before
        await session.cancel()
        assert (await engine.move_session(session.id, target)).agent_id == target


@pytest.mark.contract("DEL-10")
async def test_a_session_with_a_question_stays_while_it_is_not_loaded(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, replies(ASK), Probe(permission="?")) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        session_id = stage.session.id
    async with open_test_engine(tmp_path, stage.provider, seed=4) as engine:
        target = await target_of(engine, tmp_path)
        before = whole(stage, session_id)
        assert await refused(engine, session_id, target) == "active"
        assert whole(stage, session_id) == before
        assert engine._sessions.loaded(session_id) is None


@pytest.mark.contract("DEL-10")
@pytest.mark.parametrize("unreadable", [False, True])
async def test_a_session_with_input_that_waits_stays(
    tmp_path: Path, unreadable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_stage(tmp_path, replies()) as stage:
        engine, session_id = stage.engine, stage.session.id
        target = await target_of(engine, tmp_path)
        await stage.session.close()
        store = store_of(engine)
        with monkeypatch.context() as patch:
            if unreadable:

                def fail(*_: Any) -> Any:
                    raise StorageError("unreadable")

                patch.setattr(type(store), "pending_inputs", fail)
            else:
                store.post(session_id, "c", "{}", now=0.0)
            before = whole(stage, session_id)
            assert await refused(engine, session_id, target) == "pending-input"
            assert whole(stage, session_id) == before


@pytest.mark.contract("DEL-10")
async def test_a_provider_with_a_process_needs_the_folder(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    async with open_stage(tmp_path, replies()) as stage:
        model = {"provider": "acp", "model": "m"}
        config = {"defaultModel": model, "projectPath": str(gone)}
        target = await stage.engine.agents.create("target", config=config)
        before = whole(stage, stage.session.id)
        assert await refused(stage.engine, stage.session.id, target) == "no-workdir"
        assert whole(stage, stage.session.id) == before
        gone.mkdir()
        moved = await stage.engine.move_session(stage.session.id, target)
        assert (moved.provider, moved.workspace) == ("acp", str(gone))


@pytest.mark.contract("DEL-10")
async def test_a_move_goes_through_the_mailbox_and_the_target_s_gate(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        engine, session = stage.engine, stage.session
        target = await target_of(engine, tmp_path)
        async with engine.agents.gates.deletion(target):
            with pytest.raises(BeingDeletedError):
                await engine.move_session(session.id, target)
        loaded = engine._sessions.loaded(session.id)
        assert loaded is not None
        held = HeldAppend(loaded.session.ports.record)
        loaded.session.ports = attrs.evolve(loaded.session.ports, record=held)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: session.configure(temperature=0.25))
            await held.reached.wait()
            nursery.start_soon(engine.move_session, session.id, target)
            await wait_all_tasks_blocked()
            assert row_of(stage, session.id).settings.agent_id == "default"
            held.gate.set()
        settings = row_of(stage, session.id).settings
        assert (settings.agent_id, settings.temperature) == (target, 0.25)
        # It is the same actor that goes on.
        assert (await session.prompt("go")).text == "done"
        async with open_test_engine(
            tmp_path, RehearsalProvider(replies()), seed=8
        ) as other:
            with pytest.raises(SessionHeldError):
                await other.move_session(session.id, target)


#### One transaction


@pytest.mark.contract("DEL-11")
@pytest.mark.parametrize("loaded", [False, True])
async def test_a_fault_at_any_statement_leaves_the_old_assignment(
    tmp_path: Path, loaded: bool
) -> None:
    async with open_stage(tmp_path, replies(DONE)) as stage:
        engine, session = stage.engine, stage.session
        await session.prompt("go")
        target = await target_of(engine, tmp_path)
        select_skills(stage, session.id, target)
        if not loaded:
            await session.close()
        # What goes on behind a turn must not meet the faults.
        await wait_all_tasks_blocked()
        db = store_of(engine).connection
        before = whole(stage, session.id)
        faults, done = 0, False
        while not done:
            count = 0

            def trace(_: Any, sql: str, __: Any, fails_at: int = faults) -> bool:
                nonlocal count
                count += 1
                if count == fails_at + 1:
                    raise StorageError(f"no {sql}")
                return True

            db.exec_trace = trace
            try:
                await engine.move_session(session.id, target)
                done = True
            except (StorageError, TransferRefusedError):
                # Refused where it was the look at the input that failed.
                db.exec_trace = None
                assert whole(stage, session.id)[0].settings == before[0].settings
                assert whole(stage, session.id)[1:] == before[1:]
                faults += 1
            finally:
                db.exec_trace = None
        assert faults > 5
        assert row_of(stage, session.id).settings.agent_id == target


@pytest.mark.contract("DEL-11")
async def test_an_old_backend_that_can_t_be_closed_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[str] = []

    class Foreign:
        async def forget(self, session_id: SessionId) -> None:
            closed.append(session_id)
            raise StorageError("it does not end")

    async with open_stage(tmp_path, replies()) as stage:
        engine = stage.engine
        agent = await engine.agents.create("was native")
        session = await engine.create_session(workspace=tmp_path, agent=agent)
        await session.close()
        row = store_of(engine).agent(agent)
        store_of(engine).put_agent(
            msgspec.structs.replace(row, kind="acp", config='{"command":"c"}')
        )
        foreign: Any = Foreign()
        engine.agents.register("acp", foreign)
        target = await target_of(engine, tmp_path)
        with caplog.at_level(logging.WARNING):
            moved = await engine.move_session(session.id, target)
        assert closed == [session.id]
        assert "it does not end" in caplog.text
        assert moved.agent_id == row_of(stage, session.id).settings.agent_id == target
        assert (await session.configure(temperature=0.1)).temperature == 0.1


async def test_a_target_that_another_engine_removes_meanwhile_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_stage(tmp_path, replies()) as stage:
        engine, session = stage.engine, stage.session
        target = await target_of(engine, tmp_path)
        store, before = store_of(engine), whole(stage, session.id)
        append_piece = type(store).pending_inputs

        def drop_first(self: Any, scope: SessionId) -> Any:
            self.drop_agent(target)
            return append_piece(self, scope)

        monkeypatch.setattr(type(store), "pending_inputs", drop_first)
        with pytest.raises(AgentNotFoundError):
            await engine.move_session(session.id, target)
        assert whole(stage, session.id) == before


#### Many


async def sessions_of(
    engine: Engine, folder: Path, agent: str, count: int
) -> list[SessionHandle]:
    made = [
        await engine.create_session(workspace=folder, agent=agent, title=f"s{n}")
        for n in range(count)
    ]
    for session in made:
        await session.prompt("go")
    return made


@pytest.mark.contract("DEL-12")
async def test_one_that_may_not_go_keeps_all(tmp_path: Path) -> None:
    script = replies(*[DONE] * 9, ASK)
    async with (
        open_stage(tmp_path, script, Probe(permission="?")) as stage,
        trio.open_nursery() as nursery,
    ):
        engine = stage.engine
        agent, target = (
            await engine.agents.create("old"),
            await target_of(engine, tmp_path),
        )
        made = await sessions_of(engine, tmp_path, agent, 9)
        busy = await engine.create_session(workspace=tmp_path, agent=agent)
        draft = await engine.create_session(workspace=tmp_path, agent=agent)
        nursery.start_soon(busy.prompt, "go")
        await wait_all_tasks_blocked()
        impact = await engine.assess_move(agent)
        assert (impact.moved, impact.deleted, impact.blocked) == (10, 1, 1)
        assert len(impact.samples) == 6
        assert impact.samples[0] == (busy.id, "New Chat", "active")
        with pytest.raises(TransferRefusedError) as caught:
            await engine.move_sessions(agent, target)
        assert caught.value.code == "blocked"
        assert len(await engine.sessions(agent=agent)) == 11
        await busy.cancel()
        moved = await engine.move_sessions(agent, target)
        assert (moved.moved, moved.deleted) == (10, 1)
        rows = await engine.sessions(agent=target)
        assert {row.id for row in rows} == {busy.id, *(each.id for each in made)}
        assert draft.id not in {row.id for row in await engine.sessions()}
        await engine.agents.remove(agent)


@pytest.mark.contract("DEL-12")
async def test_a_failure_in_the_middle_says_how_far_it_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_stage(tmp_path, replies(*[DONE] * 6)) as stage:
        engine = stage.engine
        agent, target = (
            await engine.agents.create("old"),
            await target_of(engine, tmp_path),
        )
        await sessions_of(engine, tmp_path, agent, 6)
        transfers, count = engine._lifecycle.transfers, 0
        transfer = type(transfers).transfer

        async def fail(self: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == 4:
                raise StorageError("the disk is full")
            return await transfer(self, *args, **kwargs)

        monkeypatch.setattr(type(transfers), "transfer", fail)
        with pytest.raises(MoveError) as caught:
            await engine.move_sessions(agent, target)
        assert (caught.value.moved, caught.value.deleted) == (3, 0)
        assert "3 sessions were moved" in str(caught.value)
        assert "the disk is full" in str(caught.value)
        assert len(await engine.sessions(agent=target)) == 3
        assert len(await engine.sessions(agent=agent)) == 3


async def test_an_empty_session_with_children_is_moved_and_not_deleted(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, replies()) as stage:
        engine = stage.engine
        agent, target = (
            await engine.agents.create("old"),
            await target_of(engine, tmp_path),
        )
        parent = await engine.create_session(workspace=tmp_path, agent=agent)
        child = await engine.create_session(workspace=tmp_path)
        engine._lifecycle.deletion.stages = Stages(
            delegation=Family({parent.id: [child.id]})
        )
        moved = await engine.move_sessions(agent, target)
        assert (moved.moved, moved.deleted) == (1, 0)
        with pytest.raises(TransferRefusedError) as caught:
            await engine.move_sessions(target, await engine.agents.create_acp("x", "c"))
        assert caught.value.code == "acp-target"


@pytest.mark.parametrize("loaded", [False, True])
async def test_whoever_watches_is_told(tmp_path: Path, loaded: bool) -> None:
    async with open_stage(tmp_path, [DONE]) as stage:
        session, engine = stage.session, stage.engine
        await session.prompt("first")
        target = await target_of(engine, tmp_path)
        if not loaded:
            await session.close()
        async with session.follow() as feed:
            await engine.move_session(session.id, target)
            with trio.fail_after(1):
                event = await anext(feed)
                while not isinstance(event, SessionUpdated):
                    event = await anext(feed)
        assert event.settings.agent_id == target
        assert event.seq == len(read_tape(stage.state, session.id))
