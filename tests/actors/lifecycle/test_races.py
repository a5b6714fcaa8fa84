"""Races with the removal of an agent: no session is ever of one that is gone."""

from __future__ import annotations

from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings, strategies as st
from kit.rehearsal import replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.gates import BeingDeletedError
from greenroom.actors.lifecycle import Stages
from greenroom.engine import Engine, open_engine
from greenroom.protocol import (
    AgentNotFoundError,
    AgentRefusedError,
    GreenroomError,
    SessionSettings,
)
from greenroom.storage import MemoryStore, open_reader
from greenroom.testing import RehearsalProvider, open_test_engine

AGENTS = 2
ENGINES = 2


@attrs.frozen
class Step:
    """One operation, begun in one of the engines, and what happens to it."""

    do: str
    engine: int
    agent: int
    session: int
    ticks: int
    """Turns of the loop before the next step begins."""
    cancelled: bool
    """Whether it is cancelled then."""


STEPS = st.lists(
    st.builds(
        Step,
        do=st.sampled_from(["create", "fork", "move", "delete", "remove"]),
        engine=st.integers(0, ENGINES - 1),
        agent=st.integers(0, AGENTS - 1),
        session=st.integers(0, 3),
        ticks=st.integers(0, 12),
        cancelled=st.booleans(),
    ),
    min_size=1,
    max_size=10,
)


@attrs.define(eq=False)
class World:
    """Two engines on one store, their agents, and the sessions that were made."""

    store: Any
    engines: list[Engine]
    agents: list[str]
    sessions: list[str] = attrs.field(factory=list)
    made: int = 0

    def check(self) -> None:
        """No row names an agent that is not there (DEL-09)."""
        known = {row.id for row in self.store.agents()}
        named = {row.settings.agent_id for row in self.store.sessions(500)}
        assert named <= known

    async def run(self, step: Step) -> None:
        # Refused: it came too late, or something else was there first.
        with suppress(GreenroomError):
            await self.perform(step, self.engines[step.engine])

    async def perform(self, step: Step, engine: Engine) -> None:
        agent = self.agents[step.agent]
        session = self.sessions[step.session % len(self.sessions)]
        match step.do:
            case "create":
                chosen = await engine.agents.select(agent)
                await self.keep(
                    await engine.agents.create_session(chosen.agent, of(agent)), engine
                )
            case "fork":
                handle = await engine.fork_session(session)
                await self.keep(handle.id, engine)
            case "move":
                await engine.move_session(session, agent)
            case "delete":
                await engine.delete_session(session)
            case _:
                await engine.agents.remove(agent)
                self.made += 1

    async def keep(self, session_id: str, engine: Engine) -> None:
        self.sessions.append(session_id)
        # The other engine may have it.
        await engine.session(session_id).close()


def of(agent: str) -> SessionSettings:
    return SessionSettings(
        agent_id=agent, title="t", workspace="/w", provider="rehearsal", model="m"
    )


async def play(steps: list[Step]) -> World:
    store = MemoryStore.create()
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                open_engine(
                    store=store,
                    provider=RehearsalProvider(replies()),
                    builtin=False,
                    gc_thresholds=False,
                    idle_seconds=None,
                )
            )
            for _ in range(ENGINES)
        ]
        for engine in engines:
            engine._lifecycle.deletion.stages = Stages()
        agents = [await engines[0].agents.create(f"a{n}") for n in range(AGENTS)]
        world = World(store, engines, agents)
        for agent in agents:
            chosen = await engines[0].agents.select(agent)
            made = await engines[0].agents.create_session(chosen.agent, of(agent))
            await world.keep(made, engines[0])
        async with trio.open_nursery() as nursery:
            for step in steps:
                scope = trio.CancelScope()
                nursery.start_soon(run_in, scope, world, step)
                for _ in range(step.ticks):
                    await trio.lowlevel.checkpoint()
                    world.check()
                if step.cancelled:
                    scope.cancel()
        world.check()
        for engine in engines:
            # Nothing stays shut, or counted, behind what was refused or cancelled.
            assert repr(engine.agents.gates) == "<Gates of 0 agents>"
            assert repr(engine._sessions.gates) == "<Gates of 0 sessions>"
        for row in store.sessions(500):
            for engine in engines:
                await engine.session(row.id).close()
            await world.engines[0].delete_session(row.id)
        assert store.sessions(500) == []
        return world


async def run_in(scope: trio.CancelScope, world: World, step: Step) -> None:
    with scope:
        await world.run(step)


@pytest.mark.contract("DEL-07", "DEL-09")
def test_no_session_is_ever_of_an_agent_that_is_gone() -> None:
    removed = 0

    @settings(max_examples=60, deadline=None)
    @given(STEPS)
    def race(steps: list[Step]) -> None:
        nonlocal removed
        removed += trio.run(play, steps).made

    race()
    assert removed > 10


@attrs.define(eq=False)
class HeldWriter:
    """A writer that holds every piece at a gate."""

    inner: Any
    reached: trio.Event = attrs.field(factory=trio.Event)
    gate: trio.Event = attrs.field(factory=trio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def submit(self, piece: Any, told: Any = None) -> Any:
        self.reached.set()
        await self.gate.wait()
        return await self.inner.submit(piece, told)


async def operate(engine: Engine, do: str, session: str, agent: str) -> None:
    match do:
        case "create":
            chosen = await engine.agents.select(agent)
            await engine.agents.create_session(chosen.agent, of(agent))
        case "fork":
            await engine.fork_session(session)
        case _:
            await engine.move_session(session, agent)


@pytest.mark.contract("DEL-07")
@pytest.mark.parametrize("do", ["create", "fork", "move"])
async def test_what_gives_an_agent_a_session_keeps_it_or_is_refused(
    tmp_path: Path, do: str
) -> None:
    provider = RehearsalProvider(replies())
    async with open_test_engine(tmp_path, provider) as engine:
        agent = await engine.agents.create("mine")
        owner = agent if do == "fork" else "default"
        session = await engine.create_session(workspace=tmp_path, agent=owner)
        await session.close()
        before = [row.id for row in await engine.sessions()]
        async with engine.agents.gates.deletion(agent):
            with pytest.raises(BeingDeletedError):
                await operate(engine, do, session.id, agent)
        assert [row.id for row in await engine.sessions()] == before
        writer = engine._world.writer
        held, removed = HeldWriter(writer), list[str]()
        object.__setattr__(engine._world, "writer", held)

        async def remove() -> None:
            with pytest.raises(AgentRefusedError) as caught:
                await engine.agents.remove(agent)
            removed.append(caught.value.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(operate, engine, do, session.id, agent)
            await held.reached.wait()
            nursery.start_soon(remove)
            await wait_all_tasks_blocked()
            assert removed == []
            with pytest.raises(BeingDeletedError):
                await operate(engine, do, session.id, agent)
            object.__setattr__(engine._world, "writer", writer)
            held.gate.set()
        assert removed == ["agent_in_use"]
        assert len(await engine.sessions(agent=agent)) == 1 + (do == "fork")


@pytest.mark.contract("DEL-09")
async def test_a_session_is_not_made_of_an_agent_that_another_engine_removed(
    tmp_path: Path,
) -> None:
    async with (
        open_test_engine(tmp_path, RehearsalProvider(replies())) as engine,
        open_test_engine(tmp_path, RehearsalProvider(replies()), seed=1) as other,
    ):
        agent = await engine.agents.create("mine")
        chosen = await engine.agents.select(agent)
        await other.agents.remove(agent)
        with pytest.raises(AgentNotFoundError):
            await engine.agents.create_session(chosen.agent, of(agent))
        assert await engine.sessions() == []
        assert not any("session/" in info.path for info in engine.tree())
    with closing(open_reader(tmp_path / "state")) as reader:
        assert [s for s in reader.scopes() if reader.page(s, 0).entries] == []
