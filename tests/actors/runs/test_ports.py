from __future__ import annotations

import ast
from pathlib import Path

import pytest
import trio

import greenroom.actors.runs as runs
from greenroom.actors.backend import ActiveRun, RunPlan, RunPorts
from greenroom.actors.kernel import FixedClock, SeededIds, open_system
from greenroom.actors.runs import loop_behaviour
from greenroom.actors.tools import ToolContext, ToolRegistry
from greenroom.protocol import (
    Draft,
    MessageId,
    MessageMetadata,
    MessageRecord,
    RunId,
    SessionId,
    SessionSettings,
    ViewBuilder,
)
from greenroom.testing import Call, Halt, RecordingTool, RehearsalProvider, Say

ALLOWED = {
    "greenroom.actors.backend",
    "greenroom.actors.kernel",
    "greenroom.actors.logs",
    "greenroom.actors.providers",
    "greenroom.actors.tools",
    "greenroom.protocol",
    "greenroom.protocol.context",
    "greenroom.protocol.providers",
    "greenroom.storage",
}


@pytest.mark.contract("RUN-26")
def test_the_runtime_imports_only_what_its_ports_are_made_of():
    found = set()
    for path in Path(runs.__file__ or "").parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module or "")
            elif isinstance(node, ast.Import):
                found |= {name.name for name in node.names}
    ours = {module for module in found if module.startswith("greenroom")}
    assert ours <= ALLOWED


class FakeRecord:
    """A tape that is a list."""

    def __init__(self):
        self.facts, self.journal = [], []

    async def append(self, facts):
        await trio.lowlevel.checkpoint()
        self.facts += facts

    def append_soon(self, facts):
        self.facts += facts

    def cache_soon(self, message_id, blocks):
        pass

    async def commit(self, record):
        await trio.lowlevel.checkpoint()
        self.journal.append(record)
        return True

    async def update_plan(self, entries):
        return 1

    async def end_plan(self):
        await trio.lowlevel.checkpoint()


class FakeWatchers:
    """Nobody looks on."""

    def change(self, run_id, message_id, change):
        pass

    def output(self, run_id, message_id, item_id, offset, text):
        pass

    def waiting(self, reason, until=None):
        pass


@pytest.mark.contract("RUN-26")
async def test_a_run_is_made_from_four_fakes_and_nothing_else(tmp_path):
    provider = RehearsalProvider(
        [[Call("probe", {"n": 1}), Halt("tool_use")], [Say("done"), Halt()]]
    )
    registry = ToolRegistry()
    registry.contribute(RecordingTool())
    record = FakeRecord()
    ports = RunPorts(provider, registry.snapshot(), record, FakeWatchers())
    settings = SessionSettings(
        agent_id="default", title="t", workspace=str(tmp_path), provider="p", model="m"
    )
    message = MessageRecord(
        id=MessageId("m"),
        order_seq=1,
        role="assistant",
        status="pending",
        metadata=MessageMetadata(),
        created_at=0.0,
        updated_at=0.0,
    )
    run_id = RunId("11111111-1111-4111-8111-111111111111")
    context = ToolContext(
        session_id=SessionId("s"),
        run_id=run_id,
        workspace=tmp_path,
        permission_mode="default",
        scratch=tmp_path,
        environment={},
    )
    view = ViewBuilder("p", "m")
    plan = RunPlan(run_id, SessionId("s"), settings, message, view, context)
    active = ActiveRun(plan, Draft(message.id))
    async with open_system(
        clock=FixedClock(), ids=SeededIds(0), gc_thresholds=False
    ) as system:
        await system.spawn("run", loop_behaviour(active, ports)).wait_exited()
    assert active.result is not None
    assert active.result.terminal.stop_reason == "complete"
    assert [type(fact).__name__ for fact in record.journal] == [
        "RunStarted",
        "DispatchCommitted",
        "ToolOutcome",
        "RunTerminal",
    ]
