"""Sessions that are deleted: in order, whatever fails, whenever it is cut off."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
import trio
from kit.held import HeldAppend
from kit.rehearsal import Probe, Stage, open_stage, read_tape, replies
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.kernel import ActorExitedError, CancelCause, Failed, Stopped
from greenroom.actors.lifecycle import Stages
from greenroom.actors.lifecycle._deletion import STAGES
from greenroom.actors.sessions._closed import why_ended
from greenroom.engine import (
    BeingDeletedError,
    DeletionError,
    Engine,
    SessionClosedError,
    SessionHeldError,
    SessionNotFoundError,
    StillUsedError,
    open_engine,
)
from greenroom.protocol import SessionId, StorageError
from greenroom.storage import MemoryStore, open_reader, open_store, pending_deletions
from greenroom.testing import Call, Halt, RehearsalProvider, Say, open_test_engine

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


@attrs.define(eq=False)
class Trace:
    """Everything a deletion asks others for, noted; each may fail, or hold it up."""

    log: list[tuple[str, str]] = attrs.field(factory=list)
    fail: frozenset[str] = frozenset()
    hold: str = ""
    reached: trio.Event = attrs.field(factory=trio.Event)
    tree: dict[str, Sequence[str]] = attrs.field(factory=dict)
    row: Any = lambda _: None
    """Looks at the session's row."""

    def stage(self, name: str) -> Any:
        async def run(session_id: SessionId) -> None:
            await self.note(name, session_id)

        return run

    async def note(self, name: str, session_id: str) -> None:
        await trio.lowlevel.checkpoint()
        self.log.append((name, session_id))
        assert self.row(session_id) is not None, name
        if name in self.fail:
            raise StorageError(f"no {name}")
        if name == self.hold:
            self.reached.set()
            await trio.sleep_forever()

    async def interrupt(self, session_id: SessionId) -> None:
        await self.note("delegation", session_id)

    async def children(self, session_id: SessionId) -> Sequence[SessionId]:
        await self.note("children", session_id)
        return [SessionId(child) for child in self.tree.get(session_id, ())]

    async def is_child(self, session_id: SessionId) -> bool:
        return any(session_id in each for each in self.tree.values())


@attrs.define(eq=False)
class Foreign:
    """The backend of agents with a process, which keeps a binding for each session."""

    trace: Trace
    bindings: set[str] = attrs.field(factory=set)

    async def create(self, agent: Any, settings: Any) -> SessionId:
        raise AssertionError

    async def open(self, agent: Any, session_id: SessionId) -> None:
        raise AssertionError

    async def forget(self, session_id: SessionId) -> None:
        self.bindings.discard(session_id)
        await self.trace.note("foreign", session_id)


def follow(engine: Engine, trace: Trace) -> Foreign:
    """Let *trace* see the deletions of an engine."""
    foreign = Foreign(trace)
    engine.agents.register("acp", foreign)
    trace.row = store_of(engine).session
    engine._lifecycle.deletion.stages = Stages(
        trace.stage("resources"), trace, trace.stage("permissions")
    )
    return foreign


def rest_of(state: Path, session_id: str) -> tuple[Any, ...]:
    """What is left of a session anywhere in the store."""
    scope = SessionId(session_id)
    with closing(open_reader(state)) as reader:
        return (
            reader.session(scope),
            read_tape(state, session_id),
            reader.messages(scope),
            reader.pending_inputs(scope).rows,
            reader.skill_selection(scope),
            pending_deletions(reader).get(scope),
        )


GONE = (None, [], [], (), (), None)


def store_of(engine: Engine) -> Any:
    writer: Any = engine._world.writer
    return writer._store


def select(stage: Stage, *sessions: str) -> None:
    for session_id in sessions:
        store_of(stage.engine).put_skill_selection(session_id, ["a-skill"])


@pytest.mark.contract("DEL-03")
async def test_a_session_goes_stage_by_stage_and_its_row_last(tmp_path: Path) -> None:
    trace = Trace()
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("go")
        select(stage, stage.session.id)
        foreign = follow(stage.engine, trace)
        foreign.bindings.add(stage.session.id)
        await stage.engine.delete_session(stage.session.id)
        assert [name for name, _ in trace.log] == [
            "foreign",
            "resources",
            "delegation",
            "children",
            "permissions",
        ]
        assert foreign.bindings == set()
        assert await stage.engine.sessions() == []
        assert not any("session/" in info.path for info in stage.engine.tree())
        assert rest_of(stage.state, stage.session.id) == GONE
        for call in (stage.engine.delete_session, stage.engine.open_session):
            with pytest.raises(SessionNotFoundError):
                await call(stage.session.id)


@pytest.mark.contract("DEL-03")
async def test_what_was_said_goes_behind_the_children_and_the_skills_come_last(
    tmp_path: Path,
) -> None:
    trace, seen = Trace(), list[tuple[bool, bool]]()
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("go")
        select(stage, stage.session.id)
        follow(stage.engine, trace)
        store = store_of(stage.engine)

        def look(session_id: SessionId) -> Any:
            said = bool(store.page(session_id, 2).entries)
            seen.append((said, bool(store.skill_selection(session_id))))
            return store.session(session_id)

        trace.row = look
        await stage.engine.delete_session(stage.session.id)
        names = [name for name, _ in trace.log]
        assert names[-2:] == ["children", "permissions"]
        assert seen == [(True, True)] * 4 + [(False, True)]


@pytest.mark.contract("DEL-03")
@pytest.mark.parametrize(
    "stage_name", ["foreign", "resources", "delegation", "children", "permissions"]
)
async def test_a_deletion_that_dies_in_a_stage_is_finished_by_repeating_it(
    tmp_path: Path, stage_name: str
) -> None:
    trace = Trace(hold=stage_name)
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("go")
        session_id = stage.session.id
        select(stage, session_id)
        follow(stage.engine, trace)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.engine.delete_session, session_id)
            await trace.reached.wait()
            nursery.cancel_scope.cancel()
        # As a kill leaves it: the row, and a record of what is left.
        left = rest_of(stage.state, session_id)
        assert left[0] is not None
        assert left[-1] == STAGES
        trace.hold = ""
        await stage.engine.delete_session(session_id)
        assert rest_of(stage.state, session_id) == GONE


@attrs.define(eq=False)
class Dying:
    """A writer that never comes back from a piece, before it is written or after."""

    inner: Any
    piece: int
    after: bool
    count: int = 0
    dead: trio.Event = attrs.field(factory=trio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def submit(self, piece: Any, told: Any = None) -> Any:
        self.count += 1
        if self.count != self.piece:
            return await self.inner.submit(piece, told)
        if self.after:
            await self.inner.submit(piece, told)
        self.dead.set()
        return await trio.sleep_forever()


@pytest.mark.contract("DEL-03")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "piece", range(1, 6), ids=["taken", "noted", "cleared", "deselected", "dropped"]
)
async def test_a_death_around_any_write_leaves_the_rest_to_the_next_start(
    tmp_path: Path, piece: int, after: bool
) -> None:
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("go")
        session_id, world = stage.session.id, stage.engine._world
        select(stage, session_id)
        folder = world.scratch / session_id
        folder.mkdir(parents=True)
        (folder / "output.txt").write_text("x")
        await stage.session.close()
        dying = Dying(world.writer, piece, after)
        object.__setattr__(world, "writer", dying)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.engine.delete_session, session_id)
            await dying.dead.wait()
            nursery.cancel_scope.cancel()
    has_begun = (piece, after) >= (2, True)
    async with open_test_engine(tmp_path, stage.provider, seed=3) as engine:
        if not has_begun:
            assert rest_of(stage.state, session_id)[0] is not None
            await engine.delete_session(session_id)
        # What had begun was finished by the start itself.
        assert rest_of(stage.state, session_id) == GONE
        assert not folder.exists()


@pytest.mark.contract("DEL-04")
async def test_both_backends_are_asked_together_and_to_the_end(tmp_path: Path) -> None:
    trace = Trace()
    async with open_stage(tmp_path, replies()) as stage:
        follow(stage.engine, trace)
        native, gate = stage.engine.agents.backends["native"], trio.Event()
        log: list[str] = []

        class Slow:
            async def forget(self, session_id: SessionId) -> None:
                log.append("began")
                await gate.wait()
                await native.forget(session_id)
                log.append("ended")

        slow: Any = Slow()
        stage.engine.agents.backends["native"] = slow
        trace.fail = frozenset(["foreign"])
        async with trio.open_nursery() as nursery:

            async def delete() -> None:
                with pytest.raises(DeletionError) as caught:
                    await stage.engine.delete_session(stage.session.id)
                assert str(caught.value.__cause__) == "no foreign"

            nursery.start_soon(delete)
            await wait_all_tasks_blocked()
            assert log == ["began"]
            assert [name for name, _ in trace.log] == ["foreign"]
            gate.set()
        assert log == ["began", "ended"]
        assert rest_of(stage.state, stage.session.id)[:-1] == GONE[:-1]


FAILING = ["foreign", "resources", "delegation", "children", "permissions"]


@pytest.mark.contract("DEL-04")
@pytest.mark.parametrize("failing", [[name] for name in FAILING] + [FAILING])
async def test_a_stage_that_fails_stops_no_other_and_the_first_is_reported(
    tmp_path: Path, failing: list[str]
) -> None:
    trace = Trace(fail=frozenset(failing))
    async with open_stage(tmp_path, replies()) as stage:
        follow(stage.engine, trace)
        session_id = stage.session.id
        with pytest.raises(DeletionError) as caught:
            await stage.engine.delete_session(session_id)
        assert str(caught.value.__cause__) == f"no {failing[0]}"
        assert f"no {failing[0]}" in str(caught.value)
        assert [name for name, _ in trace.log] == FAILING
        *gone, left = rest_of(stage.state, session_id)
        assert tuple(gone) == GONE[:-1]
        names = ["backends" if name == "foreign" else name for name in failing]
        assert left == tuple(names)
        # The record outlives the row, for whoever deletes it again.
        trace.fail, trace.row = frozenset(), lambda _: "gone"
        await stage.engine.delete_session(session_id)
        assert rest_of(stage.state, session_id) == GONE


@pytest.mark.contract("DEL-04")
@pytest.mark.parametrize(
    ("method", "stages"), [("reset", "data"), ("put_skill_selection", "skills")]
)
async def test_a_stage_of_the_store_that_fails_stops_no_other(
    tmp_path: Path, method: str, stages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Trace()
    async with open_stage(tmp_path, replies()) as stage:
        follow(stage.engine, trace)
        store = store_of(stage.engine)

        def fail(*_: Any, **__: Any) -> None:
            raise StorageError(f"no {method}")

        with monkeypatch.context() as patch:
            patch.setattr(type(store), method, fail)
            with pytest.raises(DeletionError) as caught:
                await stage.engine.delete_session(stage.session.id)
        assert [name for name, _ in caught.value.failures] == [stages]
        assert [name for name, _ in trace.log] == FAILING
        assert rest_of(stage.state, stage.session.id)[0] is None


@pytest.mark.contract("DEL-04")
async def test_a_row_that_can_t_go_stays_with_a_record_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_stage(tmp_path, replies()) as stage:
        store = store_of(stage.engine)

        def fail(*_: Any, **__: Any) -> None:
            raise StorageError("no delete")

        with monkeypatch.context() as patch:
            patch.setattr(type(store), "delete", fail)
            with pytest.raises(DeletionError):
                await stage.engine.delete_session(stage.session.id)
        row, *_, left = rest_of(stage.state, stage.session.id)
        assert row is not None
        assert left == STAGES
        await stage.engine.delete_session(stage.session.id)
        assert rest_of(stage.state, stage.session.id) == GONE


#### The gate


@pytest.mark.contract("DEL-02")
async def test_nothing_begins_on_a_session_that_is_being_deleted(
    tmp_path: Path,
) -> None:
    trace = Trace(hold="resources")
    async with open_stage(tmp_path, replies(DONE)) as stage:
        engine, session = stage.engine, stage.session
        follow(engine, trace)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.delete_session, session.id)
            await trace.reached.wait()
            for call in (
                lambda: session.prompt("go"),
                lambda: session.configure(temperature=1.0),
                lambda: engine.open_session(session.id),
                lambda: engine.fork_session(session.id),
                lambda: engine.move_session(session.id, "default"),
            ):
                with pytest.raises(BeingDeletedError):
                    await call()
            nursery.cancel_scope.cancel()
        # Whoever cancels the deletion has a session again.
        assert (await session.configure(temperature=1.0)).temperature == 1.0
        trace.hold = ""
        await engine.delete_session(session.id)


async def test_who_hears_late_that_a_session_has_ended_is_told_what_became_of_it(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, replies()) as stage:
        sessions, session_id = stage.engine._sessions, stage.session.id
        stopped = ActorExitedError("session", Stopped(CancelCause.USER_STOP))
        told = await why_ended(sessions, session_id, stopped)
        assert isinstance(told, SessionClosedError)
        await stage.engine.delete_session(session_id)
        told = await why_ended(sessions, session_id, stopped)
        assert isinstance(told, SessionNotFoundError)
        # A defect is no end that anybody wanted.
        failed = ActorExitedError("session", Failed(RuntimeError("a defect")))
        assert await why_ended(sessions, session_id, failed) is failed


@pytest.mark.contract("DEL-02")
async def test_an_operation_that_goes_on_ends_before_anything_is_removed(
    tmp_path: Path,
) -> None:
    trace, log = Trace(), list[float | None]()
    async with open_stage(tmp_path, replies()) as stage:
        engine, session = stage.engine, stage.session
        follow(engine, trace)
        loaded = engine._sessions.loaded(session.id)
        assert loaded is not None
        held = HeldAppend(loaded.session.ports.record)
        loaded.session.ports = attrs.evolve(loaded.session.ports, record=held)

        async def configure() -> None:
            log.append((await session.configure(temperature=0.25)).temperature)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(configure)
            await held.reached.wait()
            nursery.start_soon(engine.delete_session, session.id)
            await wait_all_tasks_blocked()
            assert trace.log == []
            held.gate.set()
        assert log == [0.25]
        assert rest_of(stage.state, session.id) == GONE


@pytest.mark.contract("DEL-02")
async def test_an_operation_that_does_not_end_keeps_the_session_usable(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_stage(tmp_path, replies(DONE)) as stage:
        engine, session = stage.engine, stage.session
        gate, log = trio.Event(), list[str]()

        async def operate() -> None:
            with engine._sessions.gates.operation(session.id):
                await gate.wait()
            log.append("ended")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(operate)
            await wait_all_tasks_blocked()
            began = trio.current_time()
            with pytest.raises(StillUsedError):
                await engine.delete_session(session.id)
            assert trio.current_time() - began == 30
            assert (await session.prompt("go")).text == "done"
            assert rest_of(stage.state, session.id)[-1] is None
            nursery.start_soon(engine.delete_session, session.id)
            await wait_all_tasks_blocked()
            assert rest_of(stage.state, session.id)[0] is not None
            gate.set()
        assert log == ["ended"]
        assert rest_of(stage.state, session.id) == GONE


async def test_two_deletions_at_once_are_one(tmp_path: Path) -> None:
    trace = Trace()
    async with open_stage(tmp_path, replies()) as stage:
        follow(stage.engine, trace)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(stage.engine.delete_session, stage.session.id)
        assert [name for name, _ in trace.log] == FAILING


async def test_a_turn_that_goes_on_is_ended_and_settled(tmp_path: Path) -> None:
    gate = trio.Event()

    async def block(_: Any, operation: Any) -> Any:
        await operation.dispatch()
        await gate.wait()

    async with open_stage(tmp_path, replies(ASK), Probe(body=block)) as stage:
        ends: list[str] = []

        async def prompt() -> None:
            ends.append((await stage.session.prompt("go")).stop_reason)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            await stage.engine.delete_session(stage.session.id)
        assert ends == ["user_stop"]
        assert rest_of(stage.state, stage.session.id) == GONE


async def test_another_engine_s_session_is_not_deleted(tmp_path: Path) -> None:
    trace = Trace()
    async with (
        open_stage(tmp_path, replies()) as stage,
        open_test_engine(tmp_path, RehearsalProvider(replies()), seed=9) as other,
    ):
        foreign = follow(other, trace)
        foreign.bindings.add(stage.session.id)
        with pytest.raises(SessionHeldError):
            await other.delete_session(stage.session.id)
        assert trace.log == []
        assert foreign.bindings == {stage.session.id}
        assert rest_of(stage.state, stage.session.id)[-1] is None


#### Children


@pytest.mark.contract("DEL-05")
async def test_a_tree_goes_with_its_root_and_a_running_child_falls_silent(
    tmp_path: Path,
) -> None:
    trace, gate = Trace(), trio.Event()

    async def block(_: Any, operation: Any) -> Any:
        await operation.dispatch()
        await gate.wait()

    script = replies(ASK)
    async with open_stage(tmp_path, script, Probe(body=block)) as stage:
        engine, root = stage.engine, stage.session.id
        child = await engine.create_session(workspace=tmp_path)
        grandchild = await engine.create_session(workspace=tmp_path)
        other = await engine.create_session(workspace=tmp_path)
        trace.tree = {root: [child.id], child.id: [grandchild.id, root]}
        follow(engine, trace)
        async with trio.open_nursery() as nursery, grandchild.follow() as feed:
            nursery.start_soon(grandchild.prompt, "go")
            await wait_all_tasks_blocked()
            await engine.delete_session(root)
            # The feed ends: nothing comes from it any more.
            seen = [type(event).__name__ async for event in feed]
            assert seen
        for gone in (root, child.id, grandchild.id):
            assert rest_of(stage.state, gone) == GONE
            assert [i.path for i in engine.tree() if gone in i.path] == []
        assert [row.id for row in await engine.sessions()] == [other.id]
        interrupted = [name for stage, name in trace.log if stage == "delegation"]
        assert interrupted == [root, child.id, grandchild.id]


@pytest.mark.contract("DEL-05")
async def test_a_child_that_fails_is_reported_and_its_siblings_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Trace()
    async with open_stage(tmp_path, replies()) as stage:
        engine, root = stage.engine, stage.session.id
        children = [await engine.create_session(workspace=tmp_path) for _ in range(3)]
        trace.tree = {root: [child.id for child in children]}
        follow(engine, trace)

        async def remove(session_id: SessionId) -> None:
            if session_id == children[0].id:
                raise StorageError("its files stay")

        deletion = engine._lifecycle.deletion
        deletion.stages = attrs.evolve(deletion.stages, resources=remove)
        with pytest.raises(DeletionError) as caught:
            await engine.delete_session(root)
        assert "its files stay" in str(caught.value)
        assert await engine.sessions() == []


#### Without an agent


@pytest.mark.contract("DEL-01")
@pytest.mark.parametrize(
    "spoiled",
    [
        None,
        {"config": "{"},
        {"enabled": False},
        {"kind": "robot"},
        {"kind": "acp", "config": '{"command":"not-there","args":[]}'},
    ],
)
async def test_a_session_is_deleted_whatever_became_of_its_agent(
    tmp_path: Path, spoiled: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_stage(tmp_path, replies(DONE)) as stage:
        agent = await stage.engine.agents.create("mine")
        session = await stage.engine.create_session(workspace=tmp_path, agent=agent)
        await session.prompt("go")
    with closing(open_store(stage.state)) as store:
        row = store.agent(agent)
        assert row is not None
        if spoiled is None:
            store.drop_agent(agent)
        else:
            store.put_agent(msgspec.structs.replace(row, **spoiled))

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was loaded, or started")

    async with open_test_engine(tmp_path, stage.provider, seed=5) as engine:
        monkeypatch.setattr(engine._sessions, "start", refuse)
        monkeypatch.setattr(trio.lowlevel, "open_process", refuse)
        await engine.delete_session(session.id)
        assert rest_of(stage.state, session.id) == GONE
        if spoiled is not None:
            await engine.agents.remove(agent)
            assert [entry.id for entry in await engine.agents.list()] == ["default"]


async def test_a_session_in_memory_is_deleted_too(tmp_path: Path) -> None:
    store = MemoryStore.create()
    provider = RehearsalProvider(replies(DONE))
    async with open_engine(store=store, provider=provider, builtin=False) as engine:
        session = await engine.create_session(workspace=tmp_path)
        await session.prompt("go")
        await engine.delete_session(session.id)
        assert await engine.sessions() == []
        assert store.page(session.id, 0).entries == ()
