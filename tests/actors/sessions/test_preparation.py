"""The steps between an accepted input and its first request, in their order."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any, Final

import attrs
import pytest
import trio
from kit.rehearsal import Stage, open_stage, replies, spy_on
from kit.run_ports import change_run_ports, turn_of
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.kernel import CancelCause
from greenroom.actors.sessions import CancelTurn
from greenroom.engine import InputBlockedError, SlidingWindow, TurnFailedError
from greenroom.protocol import (
    DiskFullError,
    Notice,
    PlanEntry,
    TextBlock,
    UserPromptSubmit,
)
from greenroom.testing import Fail, Halt, Say

DONE: Final = [Say("done"), Halt()]
GO: Final[dict[str, Callable[..., Any]]] = {
    "prompt": lambda session, text="go": session.prompt(text, command_id=text),
    "queue": lambda session, text="go": session.queue(text, command_id=text),
    "steer": lambda session, text="go": session.steer(text, command_id=text),
}
LONG: Final = "word " * 400
TALK: Final = [DONE] * 4


async def talk(stage: Stage) -> Any:
    """Say enough for some of it to be hidden before the next turn, and leave a plan."""
    for _ in TALK:
        await stage.session.prompt(LONG)
    session = loaded(stage)
    await session.ports.record.update_plan((PlanEntry("left over"),))
    session.history.pressed = True
    return session


def loaded(stage: Stage) -> Any:
    found = stage.session._sessions.loaded(stage.session.id)
    assert found is not None
    return found.session


def said(messages: Any) -> list[str]:
    return [
        block.text
        for message in messages
        for block in message.blocks
        if isinstance(block, TextBlock)
    ]


def at_step(stage: Stage, act: Callable[[str | None], object]) -> None:
    """Call *act* at the beginning of each step from now on."""
    session = loaded(stage)
    session.ports = attrs.evolve(session.ports, preparing=act)


#### The order

PREPARED: Final = [
    "resources",
    "  Skills",
    "  workspace",
    "  tools, system prompt",
    "history",
    "compaction intent",
    "user's message",
]
AFTERWARDS: Final = [
    "hooks: compaction/context_pressure",
    "  told of go",
    "memory",
    "view",
    "assistant's message",
]
STEPS: Final = {
    "prompt": [
        "attachments",
        *PREPARED,
        "compaction: input/recorded, message/compaction_indicator, message/recorded",
        *AFTERWARDS,
        "start fact: input/recorded, message/recorded, plan/updated",
    ],
    "queue": [
        "claim: input/recorded",
        "attachments: input/recorded",
        *PREPARED,
        "compaction: message/compaction_indicator, message/recorded",
        *AFTERWARDS,
        "start fact: message/recorded, plan/updated",
    ],
    # Its message is there at once, and its claim writes that it is read (PIN-05).
    "steer": [
        "attachments: input/recorded, message/recorded",
        "claim",
        "resources: input/recorded, message/recorded, message/recorded",
        *PREPARED[1:],
        "compaction: message/compaction_indicator",
        *AFTERWARDS,
        "start fact: plan/updated",
    ],
}
"""Each with what the tape had got before it."""


@attrs.define(eq=False)
class Noted:
    """A part that notes when it is asked."""

    inner: Any
    note: Callable[[], object]

    def __getattr__(self, name: str) -> Any:
        self.note()
        return getattr(self.inner, name)


def traced(stage: Stage) -> list[str]:
    """Note each step from now on, with what the tape has got before it, if anything."""
    session, trace, known = loaded(stage), list[str](), len(stage.tape())

    def preparing(step: str | None) -> None:
        nonlocal known
        assert session.hub.state == "generating"
        names = stage.names()
        new, known = names[known:], len(names)
        trace.append(f"{step}: {', '.join(new)}" if new else str(step))

    def told(notice: Notice) -> None:
        if isinstance(notice, UserPromptSubmit):
            trace.append(f"  told of {notice.text}")

    async def prepare(*args: Any) -> Any:
        whole = attrs.evolve(
            resources,
            skills=Noted(resources.skills, lambda: trace.append("  Skills")),
            environment=Noted(
                resources.environment, lambda: trace.append("  workspace")
            ),
        )
        snapshot = await whole(*args)
        return Noted(snapshot, lambda: trace.append("  tools, system prompt"))

    resources: Any = session.ports.prepare
    session.ports = attrs.evolve(
        session.ports, preparing=preparing, tell_hooks=told, prepare=prepare
    )
    return trace


@pytest.mark.contract("SES-19")
@pytest.mark.parametrize("how", GO)
async def test_a_turn_is_prepared_in_one_order(tmp_path, how):
    script = replies(*TALK, DONE)
    async with open_stage(tmp_path, script, compaction=SlidingWindow()) as stage:
        session = await talk(stage)
        trace = traced(stage)
        await GO[how](stage.session)
        await wait_all_tasks_blocked()
        assert trace[: len(STEPS[how])] == STEPS[how]
        # The run has begun, and asks the model.
        assert trace[len(STEPS[how])] == "request: execution/run_started"
        assert session.ports.record.plan.entries == ()


async def test_nothing_stands_before_a_turn_that_needs_no_compaction(tmp_path):
    async with open_stage(tmp_path, replies(DONE), compaction=SlidingWindow()) as stage:
        trace = traced(stage)
        await stage.session.prompt("go")
        assert "hooks: input/recorded, message/recorded" in trace
        assert not [step for step in trace if step.startswith("compaction:")]


@pytest.mark.contract("SES-19")
async def test_settings_are_those_of_the_beginning(tmp_path):
    async with open_stage(tmp_path, replies(DONE), system_prompt="before") as stage:
        held = Held()
        change_run_ports(stage, contribute=held)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await held.reached.wait()
            await stage.session.configure(system_prompt="after")
            held.go_on.set()
        (request,) = stage.provider.requests
        assert "before" in str(request.messages[0])
        assert "after" not in str(request.messages[0])


@pytest.mark.contract("SES-19")
@pytest.mark.parametrize("how", GO)
async def test_what_needs_a_decision_first_is_blocked_and_prepared_no_further(
    tmp_path, how
):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        session, steps = loaded(stage), list[str | None]()
        at_step(stage, steps.append)
        session.ports = attrs.evolve(session.ports, attachments=lambda *_: ("no",))
        async with trio.open_nursery() as nursery:
            go = refused if how == "prompt" else GO[how]
            nursery.start_soon(go, stage.session)
            await wait_all_tasks_blocked()
        assert [step for step in steps if step != "claim"] == ["attachments", None]
        (row,) = await stage.session.inputs()
        assert (row.state, row.blocking) == ("blocked", ("no",))
        assert session.hub.state == "idle"
        assert [m.role for m in await stage.session.messages()] == (
            ["user"] if how == "steer" else []
        )


async def refused(session: Any) -> None:
    with pytest.raises(InputBlockedError):
        await GO["prompt"](session)


#### A fault at each step


async def broken(*_: Any) -> Any:
    raise RuntimeError("it is broken")


class BrokenViews:
    def preflight(self, _: Any) -> Any:
        raise RuntimeError("it is broken")


def break_write(wanted: str) -> Callable[[Stage], object]:
    """Fail the next append that holds a fact called *wanted*, once."""

    def act(stage: Stage) -> None:
        left = [DiskFullError("the disk is full")]
        record = loaded(stage).ports.record

        @attrs.frozen
        class Record:
            def __getattr__(self, name: str) -> Any:
                return getattr(record, name)

            async def append(self, facts: Any, settles: Any = (), **named: Any) -> None:
                facts = list(facts)
                if left and wanted in [fact.name for fact in facts]:
                    raise left.pop()
                await record.append(facts, settles, **named)

        session = loaded(stage)
        session.ports = attrs.evolve(session.ports, record=Record())

    return act


def break_history(stage: Stage) -> None:
    history = loaded(stage).history

    async def read_before(_: Any) -> Any:
        raise DiskFullError("it can't be read")

    def preparing(step: str | None) -> None:
        if step == "history":
            history._read_before = read_before

    at_step(stage, preparing)


def break_hooks(stage: Stage) -> None:
    session = loaded(stage)

    def told(_: Any) -> None:
        raise RuntimeError("it is broken")

    session.ports = attrs.evolve(session.ports, tell_hooks=told)


def break_start(stage: Stage) -> None:
    left = [DiskFullError("the disk is full")]
    spy_on(stage).fail = lambda what: (
        left.pop() if left and what == "RunStarted" else None
    )


NOTHING: Final[tuple[str, ...]] = ()
SAID: Final = ("user",)
BOTH: Final = ("user", "assistant")
FAULTS: Final[dict[str, tuple[Callable[[Stage], object], str, tuple[str, ...]]]] = {
    # Who asked is told, and has the input back; nothing was said.
    "resources": (lambda s: change_run_ports(s, prepare=broken), "returned", NOTHING),
    "compaction intent": (
        lambda s: change_run_ports(s, views=BrokenViews()),
        "returned",
        NOTHING,
    ),
    # The store has failed: the input waits for the next load.
    "history": (break_history, "waiting", NOTHING),
    "indicator": (break_write("message/compaction_indicator"), "waiting", NOTHING),
    "user's message": (break_write("message/recorded"), "waiting", NOTHING),
    # What was said has left with its turn.
    "compaction": (break_write("compaction/context_pressure"), "waiting", SAID),
    "hooks": (break_hooks, "returned", SAID),
    "memory": (lambda s: change_run_ports(s, contribute=broken), "returned", SAID),
    "assistant's message": (
        lambda s: break_reply(s),
        "waiting",
        SAID,
    ),
    "start fact": (break_start, "returned", BOTH),
}
"""By the step: what breaks it, what the input is then, what had been on the tape."""


def break_reply(stage: Stage) -> None:
    at_step(
        stage,
        lambda step: (
            break_write("message/recorded")(stage)
            if step == "assistant's message"
            else None
        ),
    )


@pytest.mark.contract("SES-19")
@pytest.mark.parametrize("how", ["prompt", "queue"])
@pytest.mark.parametrize("step", FAULTS)
async def test_a_fault_leaves_what_its_step_allows(tmp_path, step, how):
    fault, left, on_tape = FAULTS[step]
    script = replies(*TALK, DONE)
    async with open_stage(tmp_path, script, compaction=SlidingWindow()) as stage:
        session = await talk(stage)
        before, known = await stage.session.messages(), len(stage.tape())
        fault(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(failed if how == "prompt" else GO[how], stage.session)
            await wait_all_tasks_blocked()
        assert await stage.session.messages() == before
        entries = [entry.fact for entry in stage.tape()[known:]]
        names = [fact.name for fact in entries]
        assert names.count("message/recorded") == len(on_tape)
        assert names.count("message/retracted") == len(on_tape)
        assert "execution/run_started" not in names
        assert len(stage.provider.requests) == len(TALK)
        assert session.hub.state == "error"
        rows = await stage.session.inputs()
        if how == "prompt" and left == "waiting" and not on_tape:
            assert rows == ()  # it is a command in the inbox, as it was
        else:
            assert [(row.id, row.delivery) for row in rows] == [("go", left)]
        # Once it can be, it is said, once.
        await stage.session.close()
        await stage.session.release_inputs()
        await wait_all_tasks_blocked()
        assert said(await stage.session.messages())[-2:] == ["go", "done"]
        assert said(await stage.session.messages()).count("go") == 1


@pytest.mark.parametrize("step", ["prepare", "contribute"])
async def test_a_prompt_that_is_given_back_has_come_in_somewhere(tmp_path, step):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        change_run_ports(stage, **{step: broken})
        with pytest.raises(TurnFailedError, match="it is broken"):
            await stage.session.prompt("go", command_id="go", endpoint="gateway")
        assert stage.names().count("endpoint/received") == 1


async def failed(session: Any) -> None:
    with pytest.raises(TurnFailedError):
        await GO["prompt"](session)


@pytest.mark.parametrize("how", ["prompt", "queue"])
async def test_a_plan_that_is_not_cleared_ends_a_turn_that_has_its_messages(
    tmp_path, how
):
    script = replies(*TALK, DONE)
    async with open_stage(tmp_path, script, compaction=SlidingWindow()) as stage:
        session = await talk(stage)
        record = Unplanned(session.ports.record)
        session.ports = attrs.evolve(session.ports, record=record)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(failed if how == "prompt" else GO[how], stage.session)
            await wait_all_tasks_blocked()
        await stage.engine.open_session(stage.session.id)
        await wait_all_tasks_blocked()
        assert await stage.session.inputs() == ()
        user, reply = (await stage.session.messages())[-2:]
        assert (said([user]), reply.status) == (["go"], "error")
        assert len(stage.provider.requests) == len(TALK)


@attrs.frozen
class Unplanned:
    """A record whose plan can't be cleared."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def clear_plan(self) -> None:
        raise DiskFullError("the disk is full")


#### Trying again


@pytest.mark.contract("SES-19")
async def test_a_retry_without_resources_takes_nothing_out_of_the_transcript(tmp_path):
    # What is taken out of the transcript for a turn to be tried again has left it when
    # that turn failed (PIN-11): a retry whose resources fail has nothing to undo.
    broke = [Fail("no", status=400)]
    async with open_stage(tmp_path, replies(DONE, broke, DONE)) as stage:
        await stage.session.prompt("one")
        await stage.session.queue("go", command_id="go")
        await wait_all_tasks_blocked()
        before, known = await stage.session.messages(), len(stage.tape())
        (row,) = await stage.session.inputs()
        assert (said(before), row.delivery) == (["one", "done"], "returned")
        change_run_ports(stage, prepare=broken)
        await stage.session.release_inputs()
        await wait_all_tasks_blocked()
        assert await stage.session.messages() == before
        assert "message/retracted" not in stage.names()[known:]
        (row,) = await stage.session.inputs()
        assert (row.id, row.delivery) == ("go", "returned")
        change_run_ports(stage, prepare=None)
        await stage.session.release_inputs()
        await wait_all_tasks_blocked()
        assert said(await stage.session.messages()) == ["one", "done", "go", "done"]


#### A cancel at each step


@attrs.define(eq=False)
class Held:
    """Holds a step until it is let go on."""

    reached: trio.Event = attrs.field(factory=trio.Event)
    go_on: trio.Event = attrs.field(factory=trio.Event)

    async def __call__(self, *_: Any) -> Any:
        self.reached.set()
        await self.go_on.wait()


CANCELLED: Final = [
    "claim",
    "attachments",
    "resources",
    "history",
    "compaction intent",
    "user's message",
    "compaction",
    "hooks",
    "memory",
    "view",
    "assistant's message",
    "start fact",
]


@pytest.mark.parametrize("how", GO)
async def test_a_cancel_at_any_step_keeps_what_was_said_and_ends_the_turn(
    tmp_path, how
):
    steps = [step for step in CANCELLED if (how, step) != ("prompt", "claim")]
    script = replies(*TALK)
    async with open_stage(tmp_path, script, compaction=SlidingWindow()) as stage:
        session, left = await talk(stage), list[str]()

        def cancel(at: str | None) -> None:
            if left == [at]:
                left.clear()
                stage.session._tell(CancelTurn(CancelCause.USER_STOP), key="cancel")

        at_step(stage, cancel)
        for step in steps:
            left[:], session.history.pressed = [step], True
            await GO[how](stage.session, f"at {step}")
            await wait_all_tasks_blocked()
            assert not left, step
            user, reply = (await stage.session.messages())[-2:]
            assert (said([user]), user.status) == ([f"at {step}"], "sent")
            assert reply.status == "error", step
            assert reply.metadata.run_stop_reason == "user_stop", step
            assert await stage.session.inputs() == (), step
            assert (session.hub.state, session.turn) == ("idle", None), step
        assert len(stage.provider.requests) == len(TALK)


@pytest.mark.parametrize("how", GO)
@pytest.mark.parametrize("step", ["prepare", "contribute"])
async def test_a_cancel_ends_a_step_that_waits(tmp_path, how, step):
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


#### What comes in meanwhile


async def test_what_comes_in_meanwhile_is_behind_the_prompt_after_a_crash_too(tmp_path):
    script = replies(DONE, DONE, DONE)
    copy = tmp_path / "copy"
    async with open_stage(tmp_path, script) as stage:
        held = Held()
        change_run_ports(stage, prepare=held)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "first")
            await held.reached.wait()
            await stage.session.queue("second")
            rows = await stage.session.inputs()
            copy.mkdir()
            shutil.copytree(stage.state, copy / "state")
            await stage.session.cancel()
    assert [(row.state, row.order) for row in rows] == [("claimed", 1), ("pending", 2)]
    session_id = stage.session.id
    async with open_stage(copy, script, session_id=session_id) as stage:
        await stage.session.prompt("third")
        asked = [m for m in await stage.session.messages() if m.role == "user"]
        assert said(asked) == ["first", "second", "third"]


@pytest.mark.parametrize("step", ["prepare", "contribute"])
async def test_a_steer_meanwhile_keeps_what_was_said_and_has_the_next_turn(
    tmp_path, step
):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        held = Held()
        change_run_ports(stage, **{step: held})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await held.reached.wait()
            change_run_ports(stage, **{step: None})
            await stage.session.steer("rather this")
        await wait_all_tasks_blocked()
        messages = await stage.session.messages()
        assert said(messages) == ["go", "rather this", "done"]
        assert [m.status for m in messages] == ["sent"] * 4
        assert messages[1].metadata.run_stop_reason == "pending_input"
