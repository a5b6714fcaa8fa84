"""The steps between an accepted input and its first request, in their order."""

from __future__ import annotations

from typing import Any, Final

import attrs
import pytest
import trio
from kit.rehearsal import Stage, open_stage, replies, spy_on
from kit.run_ports import change_run_ports, turn_of
from trio.testing import wait_all_tasks_blocked

from greenroom.engine import SlidingWindow, TurnFailedError
from greenroom.protocol import DiskFullError, PlanEntry, UserPromptSubmit
from greenroom.testing import Halt, Say

DONE: Final = [Say("done"), Halt()]
GO: Final = {
    "prompt": lambda session: session.prompt("go", command_id="go"),
    "queue": lambda session: session.queue("go", command_id="go"),
    "steer": lambda session: session.steer("go", command_id="go"),
}


LONG: Final = "word " * 400
TALK: Final = [DONE] * 4


async def talk(stage: Stage) -> None:
    """Say enough for some of it to be hidden."""
    for _ in TALK:
        await stage.session.prompt(LONG)


def loaded(stage: Stage) -> Any:
    found = stage.session._sessions.loaded(stage.session.id)
    assert found is not None
    return found.session


#### The order

STEPS: Final = {
    "prompt": ["attachments"],
    "queue": ["claim: input/recorded", "attachments: input/recorded"],
    "steer": [
        "attachments: input/recorded, message/recorded",
        "claim",
        "resources: input/recorded, message/recorded, message/recorded",
    ],
}
OF_A_TURN: Final = ["resources", "history", "compaction intent", "user's message"]
SAID: Final = {
    "prompt": "input/recorded, message/compaction_indicator, message/recorded",
    "queue": "message/compaction_indicator, message/recorded",
    "steer": "message/compaction_indicator",
}
BEHIND_IT: Final = [
    "hooks: compaction/context_pressure",
    "told of go",
    "memory",
    "view",
    "assistant's message",
]
REPLIED: Final = {
    "prompt": "input/recorded, message/recorded, plan/updated",
    "queue": "message/recorded, plan/updated",
    "steer": "plan/updated",
}


def traced(stage: Stage) -> list[str]:
    """Note each step from now on, with what the tape has got before it, if anything."""
    session = loaded(stage)
    trace: list[str] = []
    known = len(stage.tape())

    def preparing(step: str | None) -> None:
        nonlocal known
        names = stage.names()
        new, known = names[known:], len(names)
        trace.append(f"{step}: {', '.join(new)}" if new else str(step))

    def told(notice: Any) -> None:
        if isinstance(notice, UserPromptSubmit):
            trace.append(f"told of {notice.text}")

    session.ports = attrs.evolve(session.ports, preparing=preparing, tell_hooks=told)
    return trace


@pytest.mark.parametrize("how", GO)
async def test_a_turn_is_prepared_in_one_order(tmp_path, how):
    script = replies(*TALK, DONE)
    async with open_stage(tmp_path, script, compaction=SlidingWindow()) as stage:
        await talk(stage)
        session = loaded(stage)
        await session.ports.record.update_plan((PlanEntry("left over"),))
        session.history.pressed = True
        trace = traced(stage)
        await GO[how](stage.session)
        await wait_all_tasks_blocked()
        before, last = STEPS[how], OF_A_TURN
        if how == "steer":
            last = last[1:]
        elif how == "queue":
            before, last = before, ["resources", *last[1:]]
        assert trace[: len(before) + len(last)] == [*before, *last]
        rest = trace[len(before) + len(last) :]
        assert rest[:-2] == [
            f"compaction: {SAID[how]}",
            *BEHIND_IT,
            f"start fact: {REPLIED[how]}",
            "request: execution/run_started",
        ]
        # The model is asked, and the turn ends.
        assert rest[-2].startswith("None: view/assembled")
        assert session.ports.record.plan.entries == ()


async def test_nothing_stands_before_a_turn_that_needs_no_compaction(tmp_path):
    async with open_stage(tmp_path, replies(DONE), compaction=SlidingWindow()) as stage:
        trace = traced(stage)
        await stage.session.prompt("go")
        assert "hooks: input/recorded, message/recorded" in trace
        assert not [step for step in trace if step.startswith("compaction:")]


#### A fault at each step


class Broken:
    """Fails whatever it is asked."""

    async def __call__(self, *_: Any) -> Any:
        raise RuntimeError("it is broken")


def break_resources(stage: Stage) -> None:
    change_run_ports(stage, prepare=Broken())


def break_intent(stage: Stage) -> None:
    change_run_ports(stage, views=BrokenViews())


class BrokenViews:
    def preflight(self, _: Any) -> Any:
        raise RuntimeError("it is broken")


def break_write(stage: Stage, wanted: str, number: int = 1) -> None:
    """Fail the n-th append that begins with a fact called *wanted*, once."""
    seen: list[str] = []

    def fail(what: str) -> Exception | None:
        seen.append(what)
        reached = what == wanted and seen.count(wanted) == number
        return DiskFullError("the disk is full") if reached else None

    spy_on(stage).fail = fail


def break_history(stage: Stage) -> None:
    async def read_before(_: Any) -> Any:
        raise DiskFullError("it can't be read")

    def preparing(step: str | None) -> None:
        if step == "resources":
            session.history._read_before = read_before

    session = loaded(stage)
    session.ports = attrs.evolve(session.ports, preparing=preparing)


FAULTS: Final = {
    # The input is given back, and nothing was said.
    "resources": (break_resources, "returned", False),
    "compaction intent": (break_intent, "returned", False),
    # The store has failed: the input waits, in the lane.
    "history": (break_history, "waiting", False),
    "user's message": (
        lambda stage: break_write(stage, "message/compaction_indicator"),
        "waiting",
        False,
    ),
    # What was said has left with its turn.
    "compaction": (
        lambda stage: break_write(stage, "compaction/context_pressure"),
        "waiting",
        True,
    ),
    "assistant's message": (
        lambda stage: break_write(stage, "message/recorded"),
        "waiting",
        True,
    ),
    "start fact": (lambda stage: break_write(stage, "RunStarted"), "returned", True),
}


@pytest.mark.parametrize("step", FAULTS)
async def test_a_fault_leaves_what_its_step_allows(tmp_path, step):
    fault, left, said = FAULTS[step]
    script = replies(*TALK, DONE)
    async with open_stage(tmp_path, script, compaction=SlidingWindow()) as stage:
        await talk(stage)
        before, known = await stage.session.messages(), len(stage.tape())
        loaded(stage).history.pressed = True
        fault(stage)
        await stage.session.queue("go", command_id="go")
        await wait_all_tasks_blocked()
        assert await stage.session.messages() == before
        (row,) = await stage.session.inputs()
        assert (row.id, row.delivery) == ("go", left)
        names = stage.names()[known:]
        assert ("message/recorded" in names) == said
        assert ("message/retracted" in names) == said
        assert "execution/run_started" not in names
        assert len(stage.provider.requests) == len(TALK)


async def test_a_prompt_without_resources_is_told_and_kept(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        break_resources(stage)
        with pytest.raises(TurnFailedError, match="it is broken"):
            await stage.session.prompt("go", command_id="go")
        assert await stage.session.messages() == []
        (row,) = await stage.session.inputs()
        assert (row.id, row.delivery) == ("go", "returned")
        change_run_ports(stage, prepare=None)
        await stage.session.release_inputs()
        await wait_all_tasks_blocked()
        assert [m.role for m in await stage.session.messages()] == ["user", "assistant"]


#### A cancel at each step


@attrs.define(eq=False)
class Held:
    """Holds a step until it is cancelled."""

    reached: trio.Event = attrs.field(factory=trio.Event)

    async def __call__(self, *_: Any) -> Any:
        self.reached.set()
        await trio.sleep_forever()


@pytest.mark.parametrize("how", GO)
@pytest.mark.parametrize("step", ["prepare", "contribute"])
async def test_a_cancel_keeps_what_was_said_and_ends_the_turn(tmp_path, how, step):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        held = Held()
        change_run_ports(stage, **{step: held})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(GO[how], stage.session)
            await held.reached.wait()
            assert turn_of(stage).active.registered is False
            await stage.session.cancel()
        await wait_all_tasks_blocked()
        user, reply = await stage.session.messages()
        assert (user.role, user.status, reply.status) == ("user", "sent", "error")
        assert reply.metadata.run_stop_reason == "user_stop"
        assert await stage.session.inputs() == ()
        assert stage.journal() == []
