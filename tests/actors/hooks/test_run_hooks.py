"""Hooks of a run: told at their points, behind the facts; nothing they do matters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from kit.rehearsal import Probe, RecordSpy, Stage, open_stage, replies, spy_on

from greenroom.actors.kernel import CancelCause
from greenroom.actors.tools import Operation, ToolResult
from greenroom.engine import Grant
from greenroom.protocol import (
    HOOK_NAMES,
    MAX_HOOK_TEXT,
    HookEvent,
    JournalError,
    Notice,
    PermissionRequest,
    PostToolUse,
    PostToolUseFailure,
    PreToolUse,
    RunEnd,
    SessionId,
    SessionStart,
    UserPromptSubmit,
)
from greenroom.testing import Call, Fail, Halt, Hang, Say, Use

ASK = [Say("I look."), Call("probe", {"n": 1}), Use(3, 1), Halt("tool_use")]
DONE = [Say("done"), Use(2, 2), Halt()]


@attrs.define(eq=False)
class Listener:
    """Notes what it is told; may fail each time, or never end."""

    how: str = "listens"
    name: str = "listener"
    on: frozenset[str] = HOOK_NAMES
    seconds: float = 5.0
    told: list[HookEvent] = attrs.field(factory=list[HookEvent])

    async def tell(self, event: HookEvent) -> None:
        self.told.append(event)
        if self.how == "raises":
            raise RuntimeError("no")
        if self.how == "hangs":
            await trio.sleep_forever()


def trace_of(stage: Stage) -> tuple[list[Any], RecordSpy]:
    """Note facts and hook events of the loaded session in one list."""
    spy = spy_on(stage)
    loaded = stage.session._sessions.loaded(stage.session.id)
    assert loaded is not None
    tell = loaded.session.ports.tell_hooks

    def noted(event: Notice) -> None:
        if isinstance(event, HookEvent):
            spy.log.append((type(event).__name__, "hook"))
        tell(event)

    loaded.session.ports = attrs.evolve(loaded.session.ports, tell_hooks=noted)
    return spy.log, spy


def names(log: list[Any]) -> list[str]:
    return [name for name, _ in log]


@pytest.mark.contract("SKL-10")
async def test_each_hook_is_told_right_behind_its_fact(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replies(ASK, DONE), Probe()) as stage:
        log, _ = trace_of(stage)
        await stage.session.prompt("go")

    audit = ("provider/", "view/")
    facts = [name for name in names(log) if not name.startswith(audit)]
    assert facts == [
        "input/recorded",  # and what was said
        "UserPromptSubmit",
        "input/recorded",  # and the answer, pending
        "RunStarted",
        "SessionStart",
        "PreToolUse",
        "DispatchCommitted",
        "ToolOutcome",
        "PostToolUse",
        "message/recorded",
        "RunTerminal",
        "RunEnd",
        "message/recorded",
    ]


async def fails(arguments: dict[str, Any], operation: Operation) -> ToolResult:
    await operation.dispatch()
    raise ValueError("broken " * 2_000)


@pytest.mark.contract("SKL-10")
async def test_a_call_that_fails_and_one_that_pauses_are_told_as_such(
    tmp_path: Path,
) -> None:
    hook = Listener()
    bad = Probe(name="bad", body=fails)
    asks = Probe(permission="write it")
    rounds = replies([Call("bad", {"n": 1}), Halt("tool_use")], ASK, DONE)
    async with open_stage(tmp_path, rounds, bad, asks, hooks=[hook]) as stage:
        log, _ = trace_of(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await trio.testing.wait_all_tasks_blocked()
            paused = names(log)[-4:]
            (waits,) = await stage.session.interactions()
            await stage.session.answer(waits.id, Grant())

    assert paused == ["RunTerminal", "RunEnd", "message/recorded", "PermissionRequest"]
    told = [type(event).__name__ for event in hook.told]
    assert told == [
        "UserPromptSubmit",
        "SessionStart",
        "PreToolUse",
        "PostToolUseFailure",
        "RunEnd",
        "PermissionRequest",
        "SessionStart",
        "PreToolUse",
        "PostToolUse",
        "RunEnd",
        "SessionStart",
        "RunEnd",
    ]
    failure = hook.told[3]
    assert isinstance(failure, PostToolUseFailure)
    assert len(failure.response) == MAX_HOOK_TEXT
    request = hook.told[5]
    assert isinstance(request, PermissionRequest)
    assert (request.interaction_id, request.title) == (waits.id, "write it")
    ends = [event for event in hook.told if isinstance(event, RunEnd)]
    assert [end.outcome for end in ends] == ["paused", "completed", "completed"]


@pytest.mark.contract("SKL-10")
async def test_the_end_says_reason_stop_usage_and_error(tmp_path: Path) -> None:
    hook = Listener()
    rounds = replies(DONE, [Fail("no such key", code="bad_key")], [Hang()], [Hang()])
    async with open_stage(tmp_path, rounds, hooks=[hook]) as stage:
        await stage.session.prompt("one")
        await stage.session.prompt("two")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "three")
            await trio.testing.wait_all_tasks_blocked()
            await stage.session.cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "four")
            await trio.testing.wait_all_tasks_blocked()
            loaded = stage.session._sessions.loaded(stage.session.id)
            loaded.session.turn.ref.cancel(CancelCause.SUPERSEDED)  # pyright: ignore[reportOptionalMemberAccess]

    good, bad, stopped, given_up = [
        event for event in hook.told if isinstance(event, RunEnd)
    ]
    assert (good.reason, good.user_stop, good.error) == ("complete", False, None)
    assert good.usage is not None
    assert (good.usage.input, good.usage.output) == (2, 2)
    assert (bad.outcome, bad.user_stop) == ("error", False)
    assert bad.error is not None
    assert "no such key" in bad.error
    assert (stopped.outcome, stopped.reason, stopped.user_stop) == (
        "aborted",
        "user_stop",
        True,
    )
    assert (given_up.outcome, given_up.user_stop) == ("aborted", False)


@pytest.mark.contract("SKL-10")
@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_a_bad_hook_changes_and_delays_nothing(
    tmp_path: Path, how: str, autojump_clock: trio.testing.MockClock
) -> None:
    outcomes: list[Any] = []
    for hooks in ([], [Listener(how)]):
        folder = tmp_path / str(len(hooks))
        folder.mkdir()
        async with open_stage(
            folder, replies(ASK, DONE), Probe(), hooks=hooks
        ) as stage:
            began = trio.current_time()
            turn = await stage.session.prompt("go")
            took = trio.current_time() - began
            outcomes.append((turn.outcome, turn.text, took, stage.names()))
        for hook in hooks:
            assert hook.told, "it was told at least once"
    assert outcomes[0] == outcomes[1]


@pytest.mark.contract("SKL-10")
async def test_what_is_not_on_disk_is_not_told(tmp_path: Path) -> None:
    hook = Listener()

    def fail(what: str) -> Exception | None:
        return JournalError("disk", "full") if what == "ToolOutcome" else None

    async with open_stage(tmp_path, replies(ASK, DONE), Probe(), hooks=[hook]) as stage:
        _, spy = trace_of(stage)
        spy.fail = fail
        await stage.session.prompt("go")
    told = [type(event) for event in hook.told]
    assert told == [UserPromptSubmit, SessionStart, PreToolUse, RunEnd]


async def test_a_call_that_no_gate_lets_through_is_not_about_to_run(
    tmp_path: Path,
) -> None:
    hook = Listener()
    rounds = replies([Call("nobody", {}), Halt("tool_use")], DONE)
    async with open_stage(tmp_path, rounds, hooks=[hook]) as stage:
        await stage.session.prompt("go")
        assert hook.told[0] == UserPromptSubmit(
            session_id=SessionId(stage.session.id),
            message_id=(await stage.session.messages())[0].id,
            text="go",
        )
    told = {type(event) for event in hook.told}
    assert told.isdisjoint({PreToolUse, PostToolUse})
