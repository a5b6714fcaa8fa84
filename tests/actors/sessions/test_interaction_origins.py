"""Who may ask, what is stored while it waits, and which answers each kind takes."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import msgspec
import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies, spy_on
from kit.run_ports import Window, change_run_ports
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, RehearsalProvider, Say, Use
from greenroom.engine import (
    Budget,
    Deny,
    Grant,
    Needs,
    PermissionRequired,
    Question,
    Reply,
    SessionClosedError,
    ToolResult,
)
from greenroom.protocol import (
    TOO_MANY_QUESTIONS,
    InteractionError,
    ItemId,
    Other,
    PromptCommand,
    QuestionOption,
    RunTerminal,
    SessionId,
    StatusChanged,
    StreamFailed,
    TextBlock,
    TextPart,
    ToolCallBlock,
    ToolDefinition,
    ToolMessage,
    canonical_json,
)
from greenroom.storage import open_store

DONE = [Say("done"), Halt()]
ASK = [Use(6, 2), Call("probe", {"n": 1}), Halt("tool_use")]
QUESTION = Question("Which?", "Which", (QuestionOption("red"), QuestionOption("blue")))


@attrs.define(eq=False)
class AskingTool:
    """A tool whose calls need what it is told they need."""

    needs: Needs
    name: str = "probe"
    read_only: bool = False
    parallel_safe: bool = False
    calls: list[Any] = attrs.field(factory=list)

    @property
    def definition(self):
        return ToolDefinition(self.name, "asks", {"type": "object"})

    async def precheck(self, arguments, context):
        return self.needs

    async def run(self, arguments, operation):
        await operation.dispatch()
        self.calls.append(arguments)
        return ToolResult("did it")


def draft_tool():
    return AskingTool(
        Needs(
            permission="install the skill tidy",
            title="tidy",
            kind="other",
            detail="# tidy\nTidy up.",
            always_ask=True,
            origin="skill-draft-confirmation",
        )
    )


def agent_tool():
    return AskingTool(
        Needs(
            permission="the agent wants to write a.py",
            title="write a.py",
            kind="edit",
            origin="acp-permission",
        )
    )


async def late(arguments, operation):
    raise PermissionRequired(Needs("really?", "t", "other"))


TOOLS = {
    "pre-check-permission": lambda: Probe(permission="?"),
    "post-call-permission": lambda: Probe(body=late),
    "question": lambda: Probe(question=QUESTION),
    "skill-draft-confirmation": draft_tool,
    "acp-permission": agent_tool,
    "budget": Probe,
}


@attrs.define(eq=False)
class Turn:
    """A prompt in the background."""

    stage: Any
    result: Any = None

    async def run(self, text="go"):
        self.result = await self.stage.session.prompt(text)

    async def asked(self):
        await wait_all_tasks_blocked()
        return await self.stage.session.interactions()


def terminals(stage):
    return [
        (r.outcome, r.stop_reason)
        for r in stage.journal()
        if isinstance(r, RunTerminal)
    ]


@pytest.mark.contract("INT-01")
@pytest.mark.parametrize("origin", TOOLS)
async def test_what_asks_is_stored_as_pending_and_its_call_as_nothing_yet(
    tmp_path, origin
):
    async with open_stage(tmp_path, replies(ASK), TOOLS[origin]()) as stage:
        if origin == "budget":
            await stage.session.configure(turn_budget=Budget(tokens=8))
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            assert (asked.origin, asked.status, asked.answer) == (
                origin,
                "pending",
                None,
            )
            (_, message) = await stage.session.messages()
            assert message.status == "pending"
            assert terminals(stage) == [("paused", "interaction")]
            (call,) = calls_of(message)
            if origin == "budget":
                assert asked.tool_block_id == asked.id
                assert [o.label for o in asked.options] == ["raise", "stop"]
                # The call before it has its result; the question has none.
                assert stage.names().count("tool/settled") == 1
            else:
                assert asked.tool_block_id == call.id
                assert (call.status, call.response) == ("success", "")
                assert "tool/settled" not in stage.names()
            await stage.session.cancel()


@pytest.mark.contract("INT-10")
@pytest.mark.parametrize("answer", ["install", "discard"])
async def test_a_draft_may_be_viewed_and_is_then_installed_or_discarded(
    tmp_path, answer
):
    tool = draft_tool()
    async with open_stage(tmp_path, replies(ASK, DONE), tool) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            assert [o.label for o in asked.options] == ["view", "install", "discard"]
            assert "Tidy up." in asked.detail
            assert not asked.custom
            before = stage.names()
            for _ in range(2):
                await stage.session.answer(asked.id, Reply("view"))
                assert await turn.asked() == (asked,)
            for wrong in (Reply("install it, but rename it"), Other(), Grant()):
                with pytest.raises(InteractionError) as refused:
                    await stage.session.answer(asked.id, wrong)
                assert refused.value.code == "wrong_answer"
            assert stage.names() == before
            await stage.session.answer(asked.id, Reply(answer))
        assert await stage.session.interactions() == ()
        (call,) = calls_of(turn.result.message)
        if answer == "install":
            assert len(tool.calls) == 1
            assert call.response == "did it"
        else:
            assert tool.calls == []
            assert call.status == "error"
            assert "discarded" in (call.response or "")
        assert turn.result.text == "done"


async def test_an_agents_permission_is_granted_like_any_other(tmp_path):
    tool = agent_tool()
    async with open_stage(tmp_path, replies(ASK, DONE), tool) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            await stage.session.answer(asked.id, Grant())
        assert len(tool.calls) == 1


#### How many questions


def rephrased(number):
    return [Call("probe", {"question": f"which, {number}?"}), Halt("tool_use")]


@pytest.mark.contract("INT-15")
async def test_the_model_may_ask_ten_questions_in_a_turn_and_is_then_told_to_go_on(
    tmp_path,
):
    script = replies(*[rephrased(number) for number in range(14)])
    async with open_stage(
        tmp_path, script, Probe(question=QUESTION), max_rounds=14
    ) as stage:
        turn = Turn(stage)
        asked_ids = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            while asked := await turn.asked():
                asked_ids.append(asked[0].id)
                await stage.session.answer(asked[0].id, Reply("red"))
        assert len(asked_ids) == len(set(asked_ids)) == 10
        results = [call.response for call in calls_of(turn.result.message)]
        assert results == ["red"] * 10 + [TOO_MANY_QUESTIONS] * 4
        told = stage.provider.requests[11].messages[-1]
        assert isinstance(told, ToolMessage)
        assert told.is_error
        assert turn.result.stop_reason == "max_turns"


@pytest.mark.contract("INT-15")
async def test_a_cancel_while_the_third_question_waits_ends_the_turn_at_once(
    tmp_path, autojump_clock
):
    script = replies(*[rephrased(number) for number in range(5)])
    async with open_stage(tmp_path, script, Probe(question=QUESTION)) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            for _ in range(2):
                (asked,) = await turn.asked()
                await stage.session.answer(asked.id, Reply("red"))
            assert len(await turn.asked()) == 1
            before = trio.current_time()
            await stage.session.cancel()
        assert turn.result.stop_reason == "user_stop"
        assert trio.current_time() - before < 0.1
        assert len(stage.provider.requests) == 3


#### What may be open


class Stray:
    """Puts a block into the message that nobody settles."""

    def __init__(self, stage, block):
        self.stage, self.block = stage, block

    async def __call__(self, arguments, operation):
        session = self.stage.session._sessions.loaded(self.stage.session.id).session
        draft = session.turn.active.draft
        draft.add(self.block(draft.new_id()))
        raise PermissionRequired(Needs("really?", "t", "other"))


def loading_text(item_id):
    return TextBlock(id=item_id, text="half", status="loading")


def pending_call(item_id):
    return ToolCallBlock(id=item_id, call_id="x", name="probe", arguments="{}")


@pytest.mark.contract("INT-11")
@pytest.mark.parametrize("block", [loading_text, pending_call])
async def test_a_turn_does_not_pause_with_anything_else_open(tmp_path, block):
    probe = Probe()
    async with open_stage(tmp_path, replies(ASK), probe) as stage:
        probe.body = Stray(stage, block)
        turn = await stage.session.prompt("go")
        assert terminals(stage) == [("error", "unsettled_block")]
        assert turn.message.status == "error"
        assert {b.status for b in turn.message.blocks} == {"error"}
        assert await stage.session.interactions() == ()


@attrs.define(eq=False)
class LookingProvider:
    """Looks at something when a request comes."""

    inner: RehearsalProvider
    look: Any = None
    id: str = "looking"
    replayable: bool = True
    max_told_ms: int = 60_000

    @asynccontextmanager
    async def stream(self, request, **rest):
        if self.look is not None:
            await self.look()
        async with self.inner.stream(request, **rest) as events:
            yield events


@pytest.mark.contract("INT-12")
@pytest.mark.parametrize("block", [loading_text, pending_call])
async def test_what_an_earlier_run_left_open_is_an_error_before_the_next_request(
    tmp_path, block
):
    provider = LookingProvider(RehearsalProvider(replies(ASK, DONE)))
    probe, seen = Probe(permission="?"), []
    async with open_stage(tmp_path, [], probe, provider=provider) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            loaded = stage.session._sessions.loaded(stage.session.id)
            assert loaded is not None
            assert loaded.session.turn is not None
            message = loaded.session.turn.message
            left = block(ItemId(f"{message.id}.{len(message.blocks)}"))
            loaded.session.turn.message = msgspec.structs.replace(
                message, blocks=(*message.blocks, left)
            )

            async def look():
                (_, stored) = await stage.session.messages()
                seen.append([b.status for b in stored.blocks if b.id == left.id])

            provider.look = look
            await stage.session.answer(asked.id, Deny())
        assert seen == [["error"]]
        assert turn.result.text == "done"


#### A message of the user's own


def texts(messages):
    return [m.blocks[0].text for m in messages if m.role == "user"]


@asynccontextmanager
async def answered_by_other(tmp_path, script):
    """A turn that ended with "other" while another prompt waits behind it."""
    held, probe = Probe(name="held", gate=trio.Event()), Probe(question=QUESTION)
    calls = [Call("held"), Call("probe", {"n": 1}), Halt("tool_use")]
    async with open_stage(tmp_path, replies(calls, *script), held, probe) as stage:

        async def queue():
            with suppress(SessionClosedError):
                await stage.session.prompt("queued", command_id="queued")

        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            await held.reached.wait()
            nursery.start_soon(queue)
            await wait_all_tasks_blocked()
            assert held.gate is not None
            held.gate.set()
            (asked,) = await turn.asked()
            await stage.session.answer(asked.id, Other())
            await wait_all_tasks_blocked()
            result = turn.result
            ended = (result.outcome, result.stop_reason, result.message.status)
            assert ended == ("completed", "user_follow_up", "sent")
            async with stage.session.follow() as feed:
                assert feed.snapshot is not None
                assert feed.snapshot.state == "idle"
            yield stage, nursery


OWN, QUEUED = [Say("to my own"), Halt()], [Say("to the queued"), Halt()]


@pytest.mark.contract("INT-09")
async def test_other_holds_what_was_queued_until_the_users_own_message(tmp_path):
    async with answered_by_other(tmp_path, [OWN, QUEUED]) as (stage, _):
        # Idle, and a change that looks at the inbox again releases nothing.
        await stage.session.configure(title="looked at again")
        await wait_all_tasks_blocked()
        assert texts(await stage.session.messages()) == ["go"]
        assert (await stage.session.prompt("my own")).text == "to my own"
        await wait_all_tasks_blocked()
        found = await stage.session.messages()
        assert texts(found) == ["go", "my own", "queued"]


@pytest.mark.contract("INT-09")
async def test_what_was_queued_is_held_by_the_next_engine_too(tmp_path):
    async with answered_by_other(tmp_path, []) as (stage, nursery):
        session_id = stage.session.id
        nursery.cancel_scope.cancel()
    # Its asker has left, so it was taken back; as another client would send it.
    post_command(stage, session_id, at=0.0)
    script = replies(OWN, QUEUED)
    async with open_stage(tmp_path, script, session_id=session_id) as stage:
        await wait_all_tasks_blocked()
        assert texts(await stage.session.messages()) == ["go"]
        assert (await stage.session.prompt("my own")).text == "to my own"
        await wait_all_tasks_blocked()
        assert texts(await stage.session.messages()) == ["go", "my own", "queued"]


def post_command(stage, session_id, *, at):
    body = canonical_json(PromptCommand((TextPart("queued"),)))
    store = open_store(stage.state)
    store.post(SessionId(session_id), "posted", body, now=at)
    store.close()


@pytest.mark.contract("INT-09")
@pytest.mark.parametrize("answer", ["red", "mauve"])
async def test_an_option_or_a_text_is_the_result_of_the_call(tmp_path, answer):
    async with open_stage(
        tmp_path, replies(ASK, DONE), Probe(question=QUESTION)
    ) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            await stage.session.answer(asked.id, Reply(answer))
        told = stage.provider.requests[1].messages[-1]
        assert isinstance(told, ToolMessage)
        assert (told.text, told.is_error) == (answer, False)


#### Cancels


@pytest.mark.contract("INT-13")
async def test_a_cancel_while_an_answer_is_waited_for_is_settled_by_the_session(
    tmp_path,
):
    script = replies(ASK, DONE)
    async with open_stage(tmp_path, script, Probe(permission="?")) as stage:
        spy = spy_on(stage)
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            await turn.asked()
            runs = len(terminals(stage))
            spy.log.clear()
            await stage.session.cancel()
        # No run was there to settle it, and none was made.
        assert spy.log
        assert all("run-" not in task for _, task in spy.log)
        assert len(terminals(stage)) == runs
        result = turn.result
        assert (result.outcome, result.stop_reason) == ("aborted", "user_stop")
        assert (await stage.session.prompt("next")).text == "done"


@pytest.mark.contract("INT-13")
@pytest.mark.parametrize("granted", [False, True])
async def test_a_cancel_during_an_interaction_lets_in_the_prompt_that_waits(
    tmp_path, granted
):
    first = Probe(name="first", gate=trio.Event())
    probe = Probe(permission="?", gate=trio.Event())
    script = replies([Call("first"), Halt("tool_use")], DONE, ASK, DONE)
    async with open_stage(tmp_path, script, first, probe) as stage:
        before, turn, waiting = Turn(stage), Turn(stage), Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(before.run)
            await first.reached.wait()
            # Both came before the question; nothing else wakes the second one up.
            for each, text in ((turn, "asks"), (waiting, "waits")):
                nursery.start_soon(each.run, text)
                await wait_all_tasks_blocked()
            assert first.gate is not None
            first.gate.set()
            (asked,) = await turn.asked()
            if granted:
                await stage.session.answer(asked.id, Grant())
                await probe.reached.wait()
            assert texts(await stage.session.messages()) == ["go", "asks"]
            await stage.session.cancel()
        assert turn.result.stop_reason == "user_stop"
        assert waiting.result.text == "done"


@pytest.mark.contract("INT-13")
async def test_a_cancel_while_the_granted_call_runs_is_settled_by_its_run(tmp_path):
    probe = Probe(permission="?", gate=trio.Event())
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        spy = spy_on(stage)
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            await stage.session.answer(asked.id, Grant())
            await probe.reached.wait()
            spy.log.clear()
            await stage.session.cancel()
        writers = {task for what, task in spy.log if what == "RunTerminal"}
        assert len(writers) == 1
        assert all("run-" in task for task in writers)
        assert terminals(stage)[-1] == ("aborted", "user_stop")
        assert (await stage.session.prompt("next")).text == "done"


@pytest.mark.contract("INT-13")
async def test_an_error_of_a_granted_call_that_can_not_fit_fails_the_message(tmp_path):
    async def fails(arguments, operation):
        await operation.dispatch()
        raise RuntimeError("no " * 100)

    probe = Probe(permission="?", body=fails)
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        change_run_ports(stage, context_budget=Window(-1))
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            async with stage.session.follow(after=0) as feed:
                await stage.session.answer(asked.id, Grant())
                seen = []
                async for event in feed:
                    seen.append(event)
                    if isinstance(event, StatusChanged) and event.state == "error":
                        break
        failed = [e for e in seen if isinstance(e, StreamFailed)]
        assert [e.message.status for e in failed] == ["error"]
        assert turn.result.message.status == "error"
        assert turn.result.stop_reason == "context_window"
        assert len(stage.provider.requests) == 1
