"""The removal of an agent: its order, what a fault leaves, who is kept out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
import trio
from kit.agents import Desk, open_desk
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.agents import Belongings
from greenroom.actors.gates import BeingDeletedError, StillUsedError
from greenroom.protocol import (
    AgentDescriptor,
    AgentNotFoundError,
    AgentRefusedError,
    SessionId,
    SessionSettings,
    StorageError,
)
from greenroom.storage import Appended, Grant, Store, bootstrap_facts

PENDING = "agents.pendingCleanups"


@attrs.define(eq=False)
class Cabinet:
    """What agents have beside their rows, as somebody else keeps it."""

    memory: dict[str, str] = attrs.field(factory=dict)
    bindings: dict[str, str] = attrs.field(factory=dict)
    packages: tuple[str, ...] = ("global",)
    log: list[str] = attrs.field(factory=list)
    fail: str = ""

    async def clear_memory(self, agent_id: str) -> None:
        self._note("memory")
        self.memory.pop(agent_id, None)

    def retire(self, store: Store, agent_id: str) -> None:
        self._note("retire")
        assert agent_id in (store.app_setting(PENDING) or "")
        store.put_app_setting(f"audit.{agent_id}", None, now=0.0)

    async def clear_skills(self, agent_id: str) -> None:
        self._note("skills")
        self.bindings.pop(agent_id, None)

    def _note(self, what: str) -> None:
        self.log.append(what)
        if self.fail == what:
            raise StorageError(f"no {what}")


def fill(desk: Desk, cabinet: Cabinet, *agents: str) -> None:
    desk.agents.belong(
        Belongings(cabinet.clear_memory, cabinet.retire, cabinet.clear_skills)
    )
    for agent_id in agents:
        cabinet.memory[agent_id] = cabinet.bindings[agent_id] = agent_id
        desk.store.put_app_setting(f"audit.{agent_id}", '"x"', now=0.0)


def gone(desk: Desk, cabinet: Cabinet, agent_id: str) -> tuple[bool, ...]:
    return (
        agent_id not in cabinet.memory,
        desk.store.app_setting(f"audit.{agent_id}") is None,
        desk.store.agent(agent_id) is None,
        agent_id not in cabinet.bindings,
        desk.store.app_setting(PENDING) is None,
    )


def make_session(store: Store, agent_id: str, name: str = "s") -> None:
    settings = SessionSettings(
        agent_id=agent_id, title="t", workspace="/w", provider="p", model="m"
    )
    member = store.join("test", "", 60.0, now=0.0)
    grant = store.acquire(member, SessionId(name), now=0.0)
    assert isinstance(grant, Grant)
    done = store.append(grant, 0, bootstrap_facts("i", settings), now=0.0)
    assert isinstance(done, Appended)


async def two_agents(desk: Desk, cabinet: Cabinet) -> tuple[str, str]:
    await desk.agents.start()
    mine, other = await desk.agents.create("mine"), await desk.agents.create("other")
    fill(desk, cabinet, mine, other)
    desk.writer.count = 0
    return mine, other


@pytest.mark.contract("DEL-06")
async def test_an_agent_goes_in_a_fixed_order_and_takes_only_its_own(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    cabinet = Cabinet()
    with open_desk(tmp_path / "state") as desk:
        mine, other = await two_agents(desk, cabinet)
        before = desk.store.agent(other)
        await desk.agents.remove(mine)
        assert cabinet.log == ["memory", "retire", "skills"]
        assert all(gone(desk, cabinet, mine))
        assert desk.store.agent(other) == before
        assert cabinet.memory == cabinet.bindings == {other: other}
        assert desk.store.app_setting(f"audit.{other}") == '"x"'
        assert cabinet.packages == ("global",)


@pytest.mark.contract("DEL-06")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [1, 2, 3])
async def test_a_removal_that_is_cut_off_is_whole_after_a_restart_and_a_repeat(
    tmp_path: Path, when: str, step: int, autojump_clock: MockClock
) -> None:
    # Pieces: 1 the pending id, 2 the transaction, 3 the id off again.
    cabinet = Cabinet()
    with open_desk(tmp_path / "state") as desk:
        mine, other = await two_agents(desk, cabinet)
        kept = desk.store.agent(other)
        setattr(desk.writer, when, step)
        if step == 3:
            await desk.agents.remove(mine)
        else:
            with pytest.raises(StorageError):
                await desk.agents.remove(mine)
    with open_desk(tmp_path / "state") as desk:
        is_there = desk.store.agent(mine) is not None
        assert is_there == (
            (step, when) in [(1, "before"), (1, "after"), (2, "before")]
        )
        # Whatever happened, nothing of an agent that is there was taken but memory.
        assert (mine in cabinet.bindings) >= is_there
        fill(desk, cabinet)
        await desk.agents.start()
        assert desk.store.app_setting(PENDING) is None
        assert (mine in cabinet.bindings) == is_there
        if is_there:
            await desk.agents.remove(mine)
        assert all(gone(desk, cabinet, mine))
        assert desk.store.agent(other) == kept
        assert cabinet.memory == cabinet.bindings == {other: other}


@pytest.mark.contract("DEL-06")
async def test_skills_that_can_t_be_cleared_are_cleared_at_the_next_start(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    cabinet = Cabinet(fail="skills")
    with open_desk(tmp_path / "state") as desk:
        mine, _ = await two_agents(desk, cabinet)
        with caplog.at_level(logging.WARNING):
            await desk.agents.remove(mine)
        assert "no skills" in caplog.text
        assert desk.store.agent(mine) is None
        assert mine in cabinet.bindings
    cabinet.fail = ""
    with open_desk(tmp_path / "state") as desk:
        fill(desk, cabinet)
        await desk.agents.start()
        assert all(gone(desk, cabinet, mine))


@pytest.mark.contract("DEL-06")
@pytest.mark.parametrize("step", ["memory", "retire"])
async def test_what_can_t_be_retired_keeps_the_agent(
    tmp_path: Path, step: str, autojump_clock: MockClock
) -> None:
    cabinet = Cabinet(fail=step)
    with open_desk(tmp_path / "state") as desk:
        mine, _ = await two_agents(desk, cabinet)
        before = desk.everything()
        with pytest.raises(StorageError):
            await desk.agents.remove(mine)
        assert desk.everything() == before
        assert mine in cabinet.bindings


@pytest.mark.contract("DEL-06")
async def test_an_agent_with_a_session_or_a_protected_one_stays(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    cabinet = Cabinet()
    with open_desk(tmp_path / "state") as desk:
        mine, other = await two_agents(desk, cabinet)
        make_session(desk.store, mine)
        make_session(desk.store, "its-old-name", "s2")
        desk.store.put_app_setting(
            "agents.aliases", f'{{"its-old-name":"{other}"}}', now=0.0
        )
        for agent_id, code in [
            (mine, "agent_in_use"),
            (other, "agent_in_use"),
            ("default", "agent_protected"),
        ]:
            with pytest.raises(AgentRefusedError) as caught:
                await desk.agents.remove(agent_id)
            assert caught.value.code == code
        assert cabinet.log == []
        assert len(desk.store.agents()) == 3


@pytest.mark.contract("DEL-06", "DEL-07")
async def test_a_session_made_by_another_engine_meanwhile_keeps_the_agent(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    cabinet = Cabinet()
    with open_desk(tmp_path / "state") as desk:
        mine, _ = await two_agents(desk, cabinet)

        async def clear(agent_id: str) -> None:
            make_session(desk.store, agent_id)
            await cabinet.clear_memory(agent_id)

        desk.agents.belong(Belongings(clear, cabinet.retire, cabinet.clear_skills))
        with pytest.raises(AgentRefusedError) as caught:
            await desk.agents.remove(mine)
        assert caught.value.code == "agent_in_use"
        assert desk.store.agent(mine) is not None
        assert mine in cabinet.bindings
        assert desk.store.app_setting(PENDING) is None


@pytest.mark.parametrize(
    ("kind", "config"),
    [("native", "{"), ("robot", None), ("acp", "{}"), ("acp", '{"command":"c"}')],
)
async def test_an_agent_that_can_t_be_run_can_be_removed(
    tmp_path: Path, kind: str, config: str | None, autojump_clock: MockClock
) -> None:
    cabinet = Cabinet()
    with open_desk(tmp_path / "state") as desk:
        mine, _ = await two_agents(desk, cabinet)
        row = desk.store.agent(mine)
        assert row is not None
        desk.store.put_agent(
            msgspec.structs.replace(row, kind=kind, config=config, enabled=False)
        )
        await desk.agents.remove(mine)
        assert desk.store.agent(mine) is None
        # Memory and Skills are of native agents.
        assert bool(cabinet.log) == (kind == "native")


#### The gate


@attrs.define(eq=False)
class Slow:
    """A backend that makes a session when it is let."""

    store: Store
    gate: trio.Event = attrs.field(factory=trio.Event)
    began: int = 0

    async def create(
        self, agent: AgentDescriptor, settings: SessionSettings
    ) -> SessionId:
        self.began += 1
        await self.gate.wait()
        make_session(self.store, agent.id)
        return SessionId("s")

    async def open(self, agent: AgentDescriptor, session_id: SessionId) -> None:
        raise AssertionError

    async def forget(self, session_id: SessionId) -> None:
        raise AssertionError


def settings(agent_id: str) -> SessionSettings:
    return SessionSettings(
        agent_id=agent_id, title="t", workspace="/w", provider="p", model="m"
    )


async def note(log: list[Any], call: Any) -> None:
    try:
        log.append(await call)
    except Exception as exc:
        log.append(exc)


@pytest.mark.contract("DEL-07")
async def test_a_session_being_made_ends_first_and_then_keeps_its_agent(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        mine, _ = await two_agents(desk, Cabinet())
        backend = Slow(desk.store)
        desk.agents.register("native", backend)
        chosen = (await desk.agents.select(mine)).agent
        made, removed = list[Any](), list[Any]()
        async with trio.open_nursery() as nursery:
            create = desk.agents.create_session
            nursery.start_soon(note, made, create(chosen, settings(mine)))
            await wait_all_tasks_blocked()
            nursery.start_soon(note, removed, desk.agents.remove(mine))
            await wait_all_tasks_blocked()
            assert removed == []
            with pytest.raises(BeingDeletedError):
                await create(chosen, settings(mine))
            assert backend.began == 1
            backend.gate.set()
        assert made == ["s"]
        assert [error.code for error in removed] == ["agent_in_use"]
        assert desk.store.agent(mine) is not None


@pytest.mark.contract("DEL-08")
async def test_a_session_that_is_made_for_ever_ends_the_removal_at_its_bound(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with open_desk(tmp_path / "state") as desk:
        mine, _ = await two_agents(desk, Cabinet())
        backend = Slow(desk.store)
        desk.agents.register("native", backend)
        chosen = (await desk.agents.select(mine)).agent
        before = desk.everything()
        async with trio.open_nursery() as nursery:
            create = desk.agents.create_session
            nursery.start_soon(note, [], create(chosen, settings(mine)))
            await wait_all_tasks_blocked()
            began, log = trio.current_time(), list[Any]()
            nursery.start_soon(note, log, desk.agents.remove(mine))
            with pytest.raises(StillUsedError):
                await desk.agents.remove(mine)
            assert trio.current_time() - began == 30
            await wait_all_tasks_blocked()
            assert [type(error) for error in log] == [StillUsedError]
            assert desk.everything() == before
            nursery.start_soon(note, [], create(chosen, settings(mine)))
            await wait_all_tasks_blocked()
            assert backend.began == 2
            nursery.cancel_scope.cancel()


@pytest.mark.contract("DEL-08")
async def test_two_removals_at_once_are_one(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    cabinet = Cabinet()
    with open_desk(tmp_path / "state") as desk:
        mine, _ = await two_agents(desk, cabinet)
        log = list[Any]()
        with desk.agents.changes() as news:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(note, log, desk.agents.remove(mine))
            assert news.receive_nowait().change == "removed"
            with pytest.raises(trio.WouldBlock):
                news.receive_nowait()
        assert log == [None, None, None]
        assert cabinet.log == ["memory", "retire", "skills"]
        with pytest.raises(AgentNotFoundError):
            await desk.agents.remove(mine)
