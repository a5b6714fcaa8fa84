"""Who does the runs of a session: whoever is behind the backend protocol (SES-10)."""

from __future__ import annotations

import ast
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import pytest
import trio
from kit.rehearsal import Probe, journal_of, read_tape

import greenroom.engine
from greenroom.actors.backend import ActiveRun, RunPorts, RunResult, append_revisions
from greenroom.actors.runs import NativeRuns
from greenroom.actors.runs._loop import Loop
from greenroom.actors.sessions import SessionHandle, Sessions
from greenroom.actors.tools import ToolSet
from greenroom.engine import Engine, NoBackendError
from greenroom.protocol import (
    AgentDescriptor,
    SessionId,
    SessionSettings,
    StreamCompleted,
    StreamUpdated,
    Terminal,
    TextDelta,
    ToolCallBlock,
    ToolCallEnd,
    ToolCallStart,
    revisions,
)
from greenroom.testing import RehearsalProvider, open_test_engine

#### The import graph

SOURCE: Final = Path(greenroom.engine.__file__).parent
RUNS: Final = "greenroom.actors.runs"
RUNNERS: Final = (RUNS, "greenroom.actors.engine._open")
"""The loop, and the one place that puts it together with the rest."""


@cache
def imports_of(path: Path) -> frozenset[str]:
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            start = path.parents[node.level - 1].relative_to(SOURCE.parent)
            module = ".".join([*start.parts, *(node.module or "").split(".")])
            found |= {f"{module.strip('.')}.{name.name}" for name in node.names}
    return frozenset(name for name in found if name.startswith("greenroom."))


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path


def reached_from(package: str) -> set[str]:
    """Every module of ours that *package* imports, and what those import."""
    paths = dict(modules())
    waiting = [name for name in paths if (name + ".").startswith(package + ".")]
    reached = set(waiting)
    while waiting:
        for target in imports_of(paths[waiting.pop()]):
            # A name in a module loads that module, and the packages around it.
            parts = target.split(".")
            loaded = {".".join(parts[:size]) for size in range(2, len(parts) + 1)}
            new = (loaded & paths.keys()) - reached
            reached |= new
            waiting += new
    return reached


@pytest.mark.contract("SES-10")
@pytest.mark.parametrize("package", ["sessions", "endpoints", "agents", "lifecycle"])
def test_what_runs_do_is_out_of_reach(package: str) -> None:
    reached = reached_from(f"greenroom.actors.{package}")
    assert "greenroom.actors.sessions" in reached
    assert "greenroom.actors.backend" in reached
    assert {name for name in reached if name.startswith(RUNS)} == set()


@pytest.mark.contract("SES-10")
def test_the_loop_is_known_where_an_engine_is_put_together_and_nowhere_else() -> None:
    knowing = {
        name
        for name, path in modules()
        if any(target.startswith(RUNS) for target in imports_of(path))
    }
    assert not [n for n in knowing if n not in RUNNERS and not n.startswith(RUNS + ".")]


#### Another backend

SAID: Final = (
    ToolCallStart(index=0, id="theirs", name="probe"),
    ToolCallEnd(index=0, id="theirs", name="probe", arguments='{"n":1}'),
    TextDelta("done by myself"),
)


@attrs.define(eq=False)
class ForeignRuns:
    """Stands for an agent's process: it works by itself, and tells what it did."""

    prompts: list[str] = attrs.field(factory=list)

    def turn(self, active: ActiveRun, ports: RunPorts) -> Any:
        async def behave(_: Any) -> None:
            plan, draft = active.plan, active.draft
            said = plan.view.messages[-1]
            self.prompts.append(str(said.parts[0].text))  # type: ignore[union-attr]
            for event in SAID:
                await trio.lowlevel.checkpoint()
                for change in draft.apply(event):
                    ports.watchers.change(plan.run_id, plan.message.id, change)
            call = draft.block(draft.blocks[0].id)
            assert isinstance(call, ToolCallBlock)
            done = msgspec.structs.replace(call, status="success", response="mine")
            change = draft.replace(done)
            ports.watchers.change(plan.run_id, plan.message.id, change)
            active.result = await self._settle(active, ports)

        return behave

    def granted(self, active: ActiveRun, ports: RunPorts, call: Any) -> Any:
        raise AssertionError("an agent asks by itself")

    async def reconcile(self, *_: Any) -> None:
        await trio.lowlevel.checkpoint()

    async def _settle(self, active: ActiveRun, ports: RunPorts) -> RunResult:
        message, blocks = active.plan.message, active.draft.blocks
        metadata = msgspec.structs.replace(
            message.metadata, run_outcome="completed", run_stop_reason="complete"
        )
        message = msgspec.structs.replace(
            message, status="sent", blocks=blocks, metadata=metadata
        )
        await append_revisions(ports.record, revisions(message, blocks), blocks, blocks)
        return RunResult(Terminal("completed", "complete", "sent"), message)


@attrs.frozen
class Foreign:
    """A backend of agents: sessions as ours, whose runs are somebody else's."""

    sessions: Sessions

    async def create(
        self, agent: AgentDescriptor, settings: SessionSettings
    ) -> SessionId:
        return (await self.sessions.create(settings)).session.id

    async def open(self, agent: AgentDescriptor, session_id: SessionId) -> None:
        await self.sessions.open(session_id)

    async def forget(self, session_id: SessionId) -> None:
        await self.sessions.close(session_id)


def foreign_sessions(engine: Engine, runs: ForeignRuns) -> Sessions:
    async def admit(agent_id: str) -> None:
        await engine.agents.descriptor(agent_id)

    world = attrs.evolve(engine._world, backend=runs, admit=admit)
    sessions = Sessions(world, engine._system.supervisor("foreign").spawn)
    engine.agents.register("acp", Foreign(sessions))
    return sessions


def raising(*_: Any, **__: Any) -> Any:
    raise AssertionError("a direct agent came to our loop or tools")


@pytest.mark.contract("AGT-04")
async def test_a_direct_agent_meets_neither_our_loop_nor_our_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, runs, probe = RehearsalProvider([]), ForeignRuns(), Probe()
    async with open_test_engine(tmp_path, provider, probe) as engine:
        sessions = foreign_sessions(engine, runs)
        for owner, name in [
            (NativeRuns, "turn"),
            (NativeRuns, "granted"),
            (Loop, "work"),
            (ToolSet, "find"),
            (type(probe), "run"),
        ]:
            monkeypatch.setattr(owner, name, raising)
        agent = await engine.agents.create_acp("theirs", "their-program")
        made = await engine.create_session(agent=agent, workspace=tmp_path)
        session = SessionHandle(made.id, sessions, engine._readers, engine._world.ids)
        async with session.follow() as feed:
            turn = await session.prompt("go")
            shown = [
                event.block
                async for event in until_end(feed)
                if isinstance(event.block, ToolCallBlock)
            ]
        assert (turn.outcome, turn.text) == ("completed", "done by myself")
        # Shown as it was told, with the result that its owner gave it.
        assert [(b.call_id, b.response) for b in shown][-1] == ("theirs", "mine")
        assert runs.prompts == ["go"]
        assert (provider.requests, probe.calls) == ([], [])
        # The door of native sessions does not open for it.
        with pytest.raises(NoBackendError):
            await engine.session(made.id).prompt("again")
        tape = read_tape(engine.state, made.id)
        assert journal_of(tape) == []
        assert not [e for e in tape if e.fact.name.startswith("execution/")]


async def until_end(feed: Any) -> AsyncIterator[StreamUpdated]:
    async for event in feed:
        if isinstance(event, StreamUpdated):
            yield event
        if isinstance(event, StreamCompleted):
            return
