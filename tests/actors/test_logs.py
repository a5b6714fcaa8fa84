"""Log records say whose they are, as text and as JSON, and tell no secrets."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

import pytest
import trio
from kit.rehearsal import Probe, open_stage, replies, spy_on

from greenroom.actors.logs import (
    LOGGERS,
    MAX_MESSAGE,
    JsonLines,
    LogIds,
    bind_log_ids,
    of_session,
)
from greenroom.actors.tools import Operation, ToolResult
from greenroom.protocol import DiskFullError, StorageError
from greenroom.testing import Call, Halt, Say

SOURCE = Path(__file__).parents[2] / "actors" / "greenroom"
TOOLS = logging.getLogger("greenroom.tools")
SECRET = "sk-live-abcdefghijklmnopqrstuvwxyz"


def ids(record: logging.LogRecord) -> tuple[str | None, ...]:
    names = ("session_id", "message_id", "run_id", "operation_id")
    return tuple(getattr(record, name) for name in names)


def test_every_logger_of_the_engine_is_one_that_carries_ids() -> None:
    used = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r'getLogger\("(greenroom\.[^"]+)"\)', path.read_text())
    }
    assert used == set(LOGGERS)


#### Whose


async def says_so(arguments: object, operation: Operation) -> ToolResult:
    await operation.dispatch()
    TOOLS.warning("in a tool")
    return ToolResult("done")


async def test_a_record_of_a_tool_names_session_message_run_and_operation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask = [Call("probe", {"n": 1}), Halt("tool_use")]
    rounds = replies(ask, [Say("done"), Halt()])
    async with open_stage(tmp_path, rounds, Probe(body=says_so)) as stage:
        turn = await stage.session.prompt("go")
        TOOLS.warning("outside")
    told = {r.getMessage(): ids(r) for r in caplog.records}
    (dispatched,) = [r for r in stage.journal() if hasattr(r, "tool_name")]
    call = dispatched.operation.provider_tool_call_id
    run = turn.message.metadata.run_id
    assert told["in a tool"] == (stage.session.id, turn.message.id, run, f"1,{call}")
    # Whoever asked is not the run.
    assert told["outside"] == (None, None, None, None)


async def test_runs_beside_each_other_are_told_apart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ask = [Call("probe", {"n": 1}), Halt("tool_use")]
    done = [Say("done"), Halt()]
    gate = trio.Event()

    async def meets(arguments: object, operation: Operation) -> ToolResult:
        await operation.dispatch()
        await gate.wait()
        TOOLS.warning(operation.context.session_id)
        return ToolResult("done")

    rounds = replies(ask, ask, done, done)
    async with open_stage(tmp_path, rounds, Probe(body=meets)) as stage:
        other = await stage.engine.create_session(workspace=tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "one")
            nursery.start_soon(other.prompt, "two")
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
    told = [r for r in caplog.records if r.name == "greenroom.tools"]
    assert len({ids(r)[2] for r in told}) == len(told) == 2
    assert all(ids(r)[0] == r.getMessage() for r in told)


async def test_the_end_of_a_run_that_is_lost_is_told_with_its_ids(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(what: str) -> StorageError | None:
        return DiskFullError("full") if what == "RunTerminal" else None

    async with open_stage(tmp_path, replies([Say("hi"), Halt()])) as stage:
        spy_on(stage).fail = fail
        with pytest.raises(Exception, match="full"):
            await stage.session.prompt("go")
    (record,) = [r for r in caplog.records if r.name == "greenroom.kernel"]
    session, message, run, operation = ids(record)
    assert session == stage.session.id
    assert message is not None
    assert record.getMessage().split("/run-")[1].startswith(str(run))
    assert operation is None


async def test_a_record_may_say_its_own_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def other() -> None:
        bind_log_ids(LogIds("s-1", "m-1", "r-1"))
        TOOLS.warning("mine")
        TOOLS.warning("of another", extra=of_session("s-2"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
    mine, another = caplog.records
    assert ids(mine) == ("s-1", "m-1", "r-1", None)
    assert ids(another) == ("s-2", None, None, None)


#### JSON


def line_of(message: str, *args: object, **extra: object) -> dict[str, str]:
    record = TOOLS.makeRecord(
        "greenroom.tools", logging.WARNING, "f", 1, message, args, None, extra=extra
    )
    (line,) = JsonLines().format(record).splitlines()
    return json.loads(line)


def test_a_line_of_json_has_time_level_logger_message_and_the_ids_that_apply() -> None:
    line = line_of("run %s\nfailed", 7, session_id="s", run_id=None)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "warning",
        "logger": "greenroom.tools",
        "message": "run 7\nfailed",
        "session_id": "s",
    }


def test_secrets_are_taken_out_and_hostile_text_is_kept_within_bounds() -> None:
    line = line_of('%s {"password": "hunter2"} \ud800', SECRET)
    assert SECRET not in line["message"]
    assert "hunter2" not in line["message"]
    assert len(line_of("%s", "x" * 10 * MAX_MESSAGE)["message"]) == MAX_MESSAGE
    # No half of a secret at the cut.
    cut = line_of("%s", "x" * (MAX_MESSAGE - 10) + " " + SECRET)["message"]
    assert "sk-" not in cut


def test_the_traceback_of_an_error_is_in_the_line_without_its_secrets() -> None:
    try:
        raise ValueError(f"refused {SECRET}")
    except ValueError:
        record = TOOLS.makeRecord(
            "greenroom.tools", logging.ERROR, "f", 1, "failed", (), sys.exc_info()
        )
    line = json.loads(JsonLines().format(record))
    assert "ValueError: refused [redacted]" in line["error"]
