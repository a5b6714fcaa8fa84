"""Where the engine itself ends a run: the exact terminal, and the message's status."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies
from kit.run_ports import Window, break_view, change_run_ports
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.kernel import CancelCause
from greenroom.actors.providers import Call, Halt, Hang, Say
from greenroom.engine import Question
from greenroom.protocol import (
    ErrorBlock,
    Other,
    PlanEntry,
    QuestionOption,
    RunTerminal,
    StreamCompleted,
)

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]
QUESTION = Question("Which?", "Which", (QuestionOption("red"),))


def terminal(stage):
    *_, last = [r for r in stage.journal() if isinstance(r, RunTerminal)]
    return last.outcome, last.stop_reason


@attrs.frozen
class Planning:
    """A record whose next turn has a plan from its beginning."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def clear_plan(self) -> None:
        entries = (PlanEntry("first", "completed"), PlanEntry("second"))
        await self.inner.update_plan(entries)


def set_plan(stage):
    session = stage.session._sessions.loaded(stage.session.id).session
    session.ports = attrs.evolve(session.ports, record=Planning(session.ports.record))


async def plan_reason(stage):
    async with stage.session.follow() as feed:
        assert feed.snapshot is not None
        return None if feed.snapshot.plan is None else feed.snapshot.plan.reason


def many(count):
    return [*(Call("probe", {"n": n}) for n in range(count)), Halt("tool_use")]


@pytest.mark.contract("RUN-19")
async def test_the_round_limit_is_an_error(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE), Probe(), max_rounds=1) as stage:
        turn = await stage.session.prompt("go")
        assert terminal(stage) == ("error", "max_turns")
        assert turn.message.status == "error"


@pytest.mark.contract("RUN-19")
async def test_the_limit_of_calls_completes_and_marks_what_did_not_run(tmp_path):
    probe = Probe(result="ok")
    script = replies(many(127), many(2))
    async with open_stage(
        tmp_path, script, probe, permission_mode="full_access"
    ) as stage:
        set_plan(stage)
        turn = await stage.session.prompt("go")
        assert terminal(stage) == ("completed", "max_tool_calls")
        assert turn.message.status == "sent"
        assert len(probe.calls) == 127
        skipped = calls_of(turn.message)[127:]
        assert [call.status for call in skipped] == ["error", "error"]
        assert all("limit of 128" in (call.response or "") for call in skipped)
        assert await plan_reason(stage) == "max_steps"


@pytest.mark.contract("RUN-19")
async def test_waiting_input_completes_the_run_where_the_batch_has_settled(tmp_path):
    probe = Probe()
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        set_plan(stage)
        change_run_ports(stage, steer_waiting=lambda: bool(probe.calls))
        turn = await stage.session.prompt("go")
        assert terminal(stage) == ("completed", "pending_input")
        assert turn.message.status == "sent"
        (call,) = calls_of(turn.message)
        assert call.response == "result of probe 1"
        assert len(stage.provider.requests) == 1
        assert await plan_reason(stage) is None


@pytest.mark.contract("RUN-19")
async def test_a_question_pauses_and_the_message_is_pending(tmp_path):
    async with (
        open_stage(tmp_path, replies(ASK), Probe(permission="?")) as stage,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stage.session.prompt, "go")
        await wait_all_tasks_blocked()
        assert terminal(stage) == ("paused", "interaction")
        assert (await stage.session.messages())[1].status == "pending"
        await stage.session.cancel()


@pytest.mark.contract("RUN-19")
async def test_a_run_without_progress_is_an_error(tmp_path):
    script = replies(*[ASK] * 4)
    async with open_stage(tmp_path, script, Probe()) as stage:
        set_plan(stage)
        turn = await stage.session.prompt("go")
        assert terminal(stage) == ("error", "no_progress")
        assert turn.message.status == "error"
        assert await plan_reason(stage) == "max_steps"


@pytest.mark.contract("RUN-19")
async def test_results_that_fit_in_no_way_are_an_error(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE), Probe()) as stage:
        change_run_ports(stage, context_budget=Window(-1))
        turn = await stage.session.prompt("go")
        assert terminal(stage) == ("error", "tool_error")
        assert turn.message.status == "error"


@pytest.mark.contract("RUN-19")
async def test_a_message_of_the_users_own_completes_the_turn(tmp_path):
    turns: list[Any] = []
    async with open_stage(tmp_path, replies(ASK), Probe(question=QUESTION)) as stage:

        async def prompt():
            turns.append(await stage.session.prompt("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            (asked,) = await stage.session.interactions()
            await stage.session.answer(asked.id, Other())
        (turn,) = turns
        assert (turn.outcome, turn.stop_reason) == ("completed", "user_follow_up")
        assert turn.message.status == "sent"


@pytest.mark.contract("RUN-19")
async def test_what_fails_before_the_stream_is_an_error_of_its_own(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        break_view(stage, RuntimeError("no"))
        turn = await stage.session.prompt("go")
        assert terminal(stage) == ("error", "pre_stream_error")
        assert turn.message.status == "error"


#### Cancels


CAUSES = {
    CancelCause.USER_STOP: ("aborted", "user_stop", "user_canceled"),
    CancelCause.DEADLINE: ("error", "deadline", "deadline"),
    CancelCause.SHUTDOWN: ("aborted", "shutdown", "session_interrupted"),
    CancelCause.PARENT: ("aborted", "parent", "parent"),
    CancelCause.SUPERSEDED: ("aborted", "superseded", "superseded"),
    CancelCause.PROCESS_EXIT: ("error", "process_exit", "process_exit"),
}


async def cancelled_turn(stage, cause):
    turns = []

    async def prompt():
        turns.append(await stage.session.prompt("go"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(prompt)
        await wait_all_tasks_blocked()
        loaded = stage.session._sessions.loaded(stage.session.id)
        loaded.session.turn.ref.cancel(cause)
    return turns[0]


@pytest.mark.contract("RUN-18")
@pytest.mark.parametrize("cause", CAUSES)
async def test_a_run_cancelled_in_its_text_ends_as_its_cause_says(tmp_path, cause):
    outcome, reason, code = CAUSES[cause]
    async with open_stage(tmp_path, replies([Say("half"), Hang()])) as stage:
        turn = await cancelled_turn(stage, cause)
        assert terminal(stage) == (outcome, reason)
        assert turn.message.status == "error"
        assert turn.message.metadata.error_code == code
        *_, error = turn.message.blocks
        assert isinstance(error, ErrorBlock)
        assert error.code == code
        assert turn.text == "half"


@pytest.mark.contract("RUN-18")
async def test_newer_input_before_the_stream_redirects_and_blames_nobody(tmp_path):
    async with (
        open_stage(tmp_path, replies([Hang()], DONE)) as stage,
        stage.session.follow(after=0) as feed,
    ):
        turn = await cancelled_turn(stage, CancelCause.PENDING_INPUT)
        assert terminal(stage) == ("completed", "pending_input")
        assert turn.message.status == "sent"
        assert turn.message.metadata.error_code is None
        assert turn.message.blocks == ()
        async for event in feed:
            if isinstance(event, StreamCompleted):
                break
        # Its user message stays, and the next turn sees it.
        assert (await stage.session.prompt("more")).text == "done"
        assert len(stage.provider.requests[1].messages) == 2
