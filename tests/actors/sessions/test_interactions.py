from __future__ import annotations

import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Say, Use
from greenroom.actors.tools import Needs, PermissionRequired, Question, ToolResult
from greenroom.engine import SessionClosedError, TurnRefusedError
from greenroom.protocol import (
    ActionBlock,
    AssistantMessage,
    Deny,
    DispatchCommitted,
    Grant,
    InteractionError,
    Other,
    QuestionOption,
    Reply,
    RunStarted,
    RunTerminal,
    StreamCompleted,
    ToolMessage,
    ToolOutcome,
)

DONE = [Say("done"), Use(1, 1), Halt()]
ASK = [Use(2, 2), Call("probe", {"n": 1}), Halt("tool_use")]


class Turn:
    """A prompt in the background."""

    def __init__(self, stage):
        self.stage = stage
        self.result = None

    async def run(self):
        self.result = await self.stage.session.prompt("go")

    async def asked(self):
        await wait_all_tasks_blocked()
        return await self.stage.session.interactions()


async def test_a_paused_turn_stores_its_question_and_returns_when_it_ends(tmp_path):
    probe = Probe(permission="do it")
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            assert (asked.origin, asked.title) == ("pre-check-permission", "do it")
            (message,) = (await stage.session.messages())[1:]
            assert message.status == "pending"
            (call,) = calls_of(message)
            # Stored as a success without text, so that no tool fact is made of it.
            assert (call.status, call.response) == ("success", "")
            assert "tool/settled" not in stage.names()
            assert turn.result is None
            (terminal,) = [r for r in stage.journal() if isinstance(r, RunTerminal)]
            assert (terminal.outcome, terminal.stop_reason) == ("paused", "interaction")
            await stage.session.answer(asked.id, Grant())
        assert turn.result is not None
        assert turn.result.text == "done"
        assert probe.calls == [{"n": 1}]


@pytest.mark.contract("INT-02")
async def test_a_batch_goes_on_after_a_question_and_pauses_with_all_in_order(tmp_path):
    asking, plain = Probe(name="asking", permission="?"), Probe(name="plain")
    batch = [Call("asking", {"n": 1}), Call("plain"), Call("asking", {"n": 2})]
    script = replies([*batch, Halt("tool_use")], DONE)
    async with open_stage(tmp_path, script, asking, plain) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            first, second = await turn.asked()
            assert plain.calls == [{}]
            assert asking.calls == []
            calls = calls_of((await stage.session.messages())[1])
            assert [first.tool_block_id, second.tool_block_id] == [
                calls[0].id,
                calls[2].id,
            ]
            terminals = [r for r in stage.journal() if isinstance(r, RunTerminal)]
            assert [t.outcome for t in terminals] == ["paused"]
            nursery.cancel_scope.cancel()


@pytest.mark.contract("INT-03")
async def test_only_the_first_question_can_be_answered_and_only_once(tmp_path):
    two = [Call("probe", {"n": 1}), Call("probe", {"n": 2}), Halt("tool_use")]
    async with open_stage(tmp_path, replies(two, DONE), Probe(permission="?")) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            first, second = await turn.asked()
            before = stage.names()
            with pytest.raises(InteractionError) as refused:
                await stage.session.answer(second.id, Grant())
            assert refused.value.code == "out_of_order"
            assert stage.names() == before

            codes = []

            async def answer():
                try:
                    await stage.session.answer(first.id, Deny())
                    codes.append("applied")
                except InteractionError as exc:
                    codes.append(exc.code)

            async with trio.open_nursery() as both:
                both.start_soon(answer)
                both.start_soon(answer)
            assert sorted(codes) == ["already_answered", "applied"]
            await stage.session.answer(second.id, Deny())
        assert turn.result is not None


@pytest.mark.contract("INT-04")
@pytest.mark.parametrize("answer", ["grant", "deny", "asks again"])
async def test_grant_runs_the_call_and_deny_does_not(tmp_path, answer):
    asked_again, ran = [], []

    async def body(arguments, operation):
        if answer == "asks again" and not asked_again:
            asked_again.append(True)
            raise PermissionRequired(Needs("really?", "t", "other"))
        await operation.dispatch()
        ran.append("ran")
        return ToolResult("ok")

    probe = Probe(permission="?", body=body)
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            given = Deny("use a copy") if answer == "deny" else Grant()
            await stage.session.answer(asked.id, given)
            if answer == "asks again":
                (again,) = await turn.asked()
                assert again.origin == "post-call-permission"
                assert again.id != asked.id
                assert probe.calls == []
                nursery.cancel_scope.cancel()
        assert ran == (["ran"] if answer == "grant" else [])
        (_, message) = await stage.session.messages()
        if answer == "asks again":
            assert message.status == "pending"
            return
        action = next(b for b in message.blocks if isinstance(b, ActionBlock))
        (call,) = calls_of(message)
        result = stage.provider.requests[1].messages[-1]
        assert isinstance(result, ToolMessage)
        assert call.response == result.text
        if answer == "grant":
            assert (action.status, action.end) == ("granted", "granted")
            assert (call.status, result.text) == ("success", "ok")
        else:
            assert (action.status, action.end) == ("denied", "denied")
            assert (call.status, result.is_error) == ("error", True)
            assert "use a copy" in result.text


@pytest.mark.contract("INT-05")
async def test_the_last_answer_and_no_other_starts_one_new_run(tmp_path):
    two = [Call("probe", {"n": 1}), Call("probe", {"n": 2}), Halt("tool_use")]
    async with open_stage(tmp_path, replies(two, DONE), Probe(permission="?")) as stage:
        turn = Turn(stage)

        def loops():
            started = [r for r in stage.journal() if isinstance(r, RunStarted)]
            return [r.run_id for r in started if r.run_kind == "loop"]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            first, second = await turn.asked()
            assert len(loops()) == 1
            await stage.session.answer(first.id, Deny())
            await wait_all_tasks_blocked()
            assert len(loops()) == 1
            async with stage.session.follow() as feed:
                assert feed.snapshot is not None
                assert feed.snapshot.state == "generating"
            await stage.session.answer(second.id, Grant())
        assert len(set(loops())) == 2


async def test_a_resumed_turn_is_one_message_with_continued_counters(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE), Probe(permission="?")) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            await stage.session.answer(asked.id, Grant())
        message = turn.result.message  # pyright: ignore[reportOptionalMemberAccess]
        assert len(await stage.session.messages()) == 2
        assert message.metadata.provider_rounds == 2
        assert message.metadata.request_seq == 2
        assert message.metadata.tool_calls == 1
        assert message.metadata.total_tokens == 6
        _, call, result = stage.provider.requests[1].messages
        assert isinstance(call, AssistantMessage)
        assert isinstance(result, ToolMessage)
        assert result.text == "result of probe 1"


async def test_a_deferred_call_has_a_dispatch_and_an_outcome_of_its_own_run(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE), Probe(permission="?")) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            await stage.session.answer(asked.id, Grant())
        journal = stage.journal()
        deferred = next(
            r
            for r in journal
            if isinstance(r, RunStarted) and r.run_kind == "deferred_tool"
        )
        (dispatch,) = [r for r in journal if isinstance(r, DispatchCommitted)]
        (outcome,) = [r for r in journal if isinstance(r, ToolOutcome)]
        assert dispatch.operation.run_id == outcome.operation.run_id == deferred.run_id
        assert dispatch.operation.request_seq == 1
        terminal = next(
            r
            for r in journal
            if isinstance(r, RunTerminal) and r.run_id == deferred.run_id
        )
        assert (terminal.outcome, terminal.stop_reason) == ("completed", "tool_result")


QUESTION = Question(
    "Which colour?", "Colour", (QuestionOption("red"), QuestionOption("blue"))
)


@pytest.mark.parametrize("custom", [True, False])
async def test_the_answer_to_a_question_is_the_result_of_the_call(tmp_path, custom):
    question = Question(QUESTION.text, QUESTION.header, QUESTION.options, custom=custom)
    probe = Probe(question=question)
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            assert (asked.action, asked.detail) == ("question_request", "Which colour?")
            if not custom:
                with pytest.raises(InteractionError, match="red"):
                    await stage.session.answer(asked.id, Reply("green"))
            with pytest.raises(InteractionError, match="takes reply"):
                await stage.session.answer(asked.id, Grant())
            await stage.session.answer(asked.id, Reply("green" if custom else "red"))
        result = stage.provider.requests[1].messages[-1]
        assert isinstance(result, ToolMessage)
        assert result.text == ("green" if custom else "red")
        assert probe.calls == []


async def test_other_ends_the_turn_and_waits_for_a_message(tmp_path):
    script = replies(ASK, DONE)
    async with open_stage(tmp_path, script, Probe(question=QUESTION)) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            await stage.session.answer(asked.id, Other())
        result = turn.result
        assert result is not None
        assert (result.outcome, result.stop_reason) == ("completed", "user_follow_up")
        assert (await stage.session.prompt("it is green")).text == "done"


async def test_a_prompt_is_refused_while_a_question_waits(tmp_path):
    script = replies(ASK, DONE)
    async with open_stage(tmp_path, script, Probe(permission="?")) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            before = stage.names()
            with pytest.raises(TurnRefusedError) as refused:
                await stage.session.prompt("more")
            assert refused.value.code == "interaction_pending"
            assert stage.names() == before
            await stage.session.answer(asked.id, Deny())


async def test_an_answer_to_nothing_is_a_typed_error(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        with pytest.raises(InteractionError) as unknown:
            await stage.session.answer("nothing", Grant())
        assert unknown.value.code == "unknown_interaction"


async def test_full_access_never_asks(tmp_path):
    probe = Probe(permission="?")
    script = replies(ASK, DONE)
    async with open_stage(
        tmp_path, script, probe, permission_mode="full_access"
    ) as stage:
        assert (await stage.session.prompt("go")).text == "done"
        assert probe.calls == [{"n": 1}]


async def test_a_question_that_comes_after_the_effect_is_never_shown(tmp_path):
    async def late(arguments, operation):
        await operation.dispatch()
        raise PermissionRequired(Needs(permission="?", title="t", kind="other"))

    async with open_stage(tmp_path, replies(ASK, DONE), Probe(body=late)) as stage:
        result = await stage.session.prompt("go")
        assert await stage.session.interactions() == ()
        (outcome,) = [r for r in stage.journal() if isinstance(r, ToolOutcome)]
        assert outcome.is_error
        (call,) = calls_of(result.message)
        assert call.status == "error"


async def test_a_pending_question_survives_the_engine(tmp_path):
    probe = Probe(permission="?")
    async with trio.open_nursery() as outside:  # noqa: SIM117 - leaves first
        async with open_stage(tmp_path, replies(ASK), probe) as stage:
            turn, session_id = Turn(stage), stage.session.id

            async def prompt():
                with pytest.raises(SessionClosedError, match="shutdown"):
                    await turn.run()

            outside.start_soon(prompt)
            (asked,) = await turn.asked()

    script = replies(DONE)
    async with open_stage(tmp_path, script, probe, session_id=session_id) as stage:
        assert await stage.session.interactions() == (asked,)
        async with stage.session.follow() as feed:
            await stage.session.answer(asked.id, Grant())
            async for event in feed:
                if isinstance(event, StreamCompleted):
                    assert event.message.metadata.run_stop_reason == "complete"
                    break
        assert probe.calls == [{"n": 1}]


async def test_answers_that_wait_for_a_run_are_bounded(tmp_path, monkeypatch):
    from greenroom.actors.sessions import _held

    monkeypatch.setattr(_held, "MAX_HELD_ANSWERS", 1)
    probe = Probe(permission="?", gate=trio.Event())
    both = [Call("probe", {"n": 1}), Call("probe", {"n": 2}), Halt("tool_use")]
    async with open_stage(tmp_path, replies(both, DONE), probe) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            first, second = await turn.asked()
            await stage.session.answer(first.id, Grant())
            await probe.reached.wait()
            nursery.start_soon(stage.session.answer, second.id, Deny())
            await wait_all_tasks_blocked()
            with pytest.raises(TurnRefusedError) as refused:
                await stage.session.answer(second.id, Grant())
            assert refused.value.code == "too_many_answers"
            assert probe.gate is not None
            probe.gate.set()
        assert probe.calls == [{"n": 1}]


async def test_a_second_answer_does_not_wait_for_the_run_of_the_first(tmp_path):
    probe = Probe(permission="?", gate=trio.Event())
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            (asked,) = await turn.asked()
            await stage.session.answer(asked.id, Grant())
            await probe.reached.wait()
            with trio.fail_after(1), pytest.raises(InteractionError) as refused:
                await stage.session.answer(asked.id, Deny())
            assert refused.value.code == "already_answered"
            assert probe.gate is not None
            probe.gate.set()
        assert probe.calls == [{"n": 1}]


async def test_a_paused_session_rests_after_its_settings_changed(tmp_path):
    async with open_stage(tmp_path, replies(ASK), Probe(permission="?")) as stage:
        turn = Turn(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn.run)
            await turn.asked()
            await stage.session.configure(title="other")
            await wait_all_tasks_blocked()
            tree = {info.path: info.grade for info in stage.engine.tree()}
            assert tree[f"sessions/{stage.session.id}"] == "hosted"
            await stage.session.cancel()
