"""An approval that is open when the machine dies, and what may be answered after it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw
import attrs
import pytest
import trio
from kit.aftermath import Told, granted_turn, problems, watch
from kit.rehearsal import calls_of, read_tape

from greenroom.engine import Grant
from greenroom.protocol import (
    DispatchCommitted,
    GreenroomError,
    InteractionError,
    RunStarted,
    RunTerminal,
    ToolOutcome,
)
from greenroom.storage import MESSAGE_RECORDED, RUN_ACKNOWLEDGED, open_reader
from greenroom.testing import (
    Call,
    CrashDisk,
    Halt,
    RecordingTool,
    RehearsalProvider,
    Say,
    crash_disk,
    open_test_engine,
)

TWO_CALLS = [Call("probe", {"n": 1}), Call("probe", {"n": 2}), Halt("tool_use")]
DONE = [Say("done"), Halt()]


@attrs.define(eq=False)
class Crashed:
    """A session whose machine died in the run of its first approval."""

    folder: Path
    tool: RecordingTool
    session_id: str = ""

    @property
    def state(self):
        return self.folder / "state"

    def engine(self, *script, seed=2):
        provider = RehearsalProvider([*script, *[DONE] * 3])
        return open_test_engine(self.folder, provider, self.tool, seed=seed)


def crash_in_first_approval(folder, before: type) -> Crashed:
    """Grant the first of two permissions; crash *before* a fact of its run."""
    found = Crashed(folder, RecordingTool(permission="may it?"))
    with (
        crash_disk() as disk,
        pytest.raises((GreenroomError, apsw.Error, ExceptionGroup)),
    ):
        trio.run(_grant_first, found, before, disk)
    return found


async def _grant_first(found: Crashed, before: type, disk: CrashDisk) -> None:
    def crash(record) -> None:
        # The run of the approval is the second one.
        runs.append(record) if isinstance(record, RunStarted) else None
        if isinstance(record, before) and len(runs) == 2:
            disk.crash()

    runs: list[object] = []
    async with found.engine(TWO_CALLS, seed=1) as engine:
        session = await engine.create_session(workspace=found.folder)
        found.session_id = session.id
        watch(session, Told(before_commit=crash))
        await granted_turn(session, "go")


CLASSES = [
    pytest.param(DispatchCommitted, "not_dispatched", id="not_dispatched"),
    pytest.param(ToolOutcome, "indeterminate", id="indeterminate"),
    pytest.param(RunTerminal, "completed", id="completed"),
]


@pytest.mark.contract("JRN-21")
@pytest.mark.parametrize(("before", "run_class"), CLASSES)
def test_an_open_approval_can_be_answered_only_if_nothing_was_dispatched(
    tmp_path, before, run_class
):
    found = crash_in_first_approval(tmp_path, before)
    calls = len(found.tool.calls)

    async def answer():
        async with found.engine() as engine:
            assert [d.run_class for d in engine.recovered.details] == [run_class]
            session = await engine.open_session(found.session_id)
            (message,) = [m for m in await session.messages() if m.role == "assistant"]
            _, second = [b for b in message.blocks if hasattr(b, "action")]
            if run_class == "not_dispatched":
                assert message.status == "pending"
                await session.answer(second.id, Grant())
                await session.prompt("again")
                assert found.tool.calls == [{"n": 2}]
                return
            assert message.status == "error"
            with pytest.raises(InteractionError):
                await session.answer(second.id, Grant())
            assert (await session.prompt("again")).outcome == "completed"
            assert len(found.tool.calls) == calls

    trio.run(answer)
    assert problems(found.state) == []


@pytest.mark.contract("JRN-21")
def test_an_open_approval_of_a_damaged_run_cannot_be_answered(tmp_path):
    found = crash_in_first_approval(tmp_path, DispatchCommitted)
    with closing(apsw.Connection(str(found.state / "greenroom.db"))) as db:
        db.execute("DROP TRIGGER fact_is_not_updated")
        db.execute(
            "UPDATE fact SET payload = '{}' WHERE seq ="
            " (SELECT max(seq) FROM fact WHERE name = 'execution/run_started')"
        )

    async def answer():
        async with found.engine() as engine:
            assert [d.run_class for d in engine.recovered.details] == ["corruption"]
            session = await engine.open_session(found.session_id)
            (message,) = [m for m in await session.messages() if m.role == "assistant"]
            assert message.status == "error"
            _, second = [b for b in message.blocks if hasattr(b, "action")]
            with pytest.raises(InteractionError):
                await session.answer(second.id, Grant())
            assert (await session.prompt("again")).outcome == "completed"
            assert found.tool.calls == []

    trio.run(answer)


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (RunStarted, "not executed"),
        (ToolOutcome, "not known whether"),
        (RunTerminal, "result lost"),
    ],
)
def test_a_granted_call_that_never_came_back_is_no_success(tmp_path, before, told):
    found = crash_in_first_approval(tmp_path, before)

    async def look():
        async with found.engine() as engine:
            session = await engine.open_session(found.session_id)
            for block in await session.interactions():
                await session.answer(block.id, Grant())
            await session.prompt("again")
            first, _ = calls_of((await session.messages())[1])
            assert first.status == "error"
            assert told in (first.response or "")

    trio.run(look)


def test_recovery_acknowledges_the_journal_before_it_mends_the_transcript(tmp_path):
    found = crash_in_first_approval(tmp_path, ToolOutcome)
    before = len(read_tape(found.state, found.session_id))

    async def open_only():
        async with found.engine():
            pass

    trio.run(open_only)
    names = [e.fact.name for e in read_tape(found.state, found.session_id)[before:]]
    assert names == [RUN_ACKNOWLEDGED, MESSAGE_RECORDED]
    with closing(open_reader(found.state)) as reader:
        assert (
            reader.pending_messages(
                read_tape(found.state, found.session_id)[0].session_id
            )
            == []
        )
