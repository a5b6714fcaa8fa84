"""Faults that agents are known for, each played whole against the engine."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import trio
from kit.raw_server import Step, chunk, chunked_head, serve_raw
from kit.rehearsal import Probe, calls_of, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import (
    Call,
    ChatCompletionsProvider,
    Fail,
    Halt,
    Hang,
    Say,
    Think,
)
from greenroom.actors.tools import ToolResult
from greenroom.engine import Deny, Grant, TurnFailedError
from greenroom.protocol import (
    AssistantMessage,
    DispatchCommitted,
    ReasoningBlock,
    StorageError,
    TextPart,
    ToolMessage,
    ToolOutcome,
    UserMessage,
)
from greenroom.storage import open_store, recover_session

DONE = [Say("done"), Halt()]


def ask(*numbers):
    return [*(Call("probe", {"n": n}) for n in numbers), Halt("tool_use")]


def sent(stage, kind):
    return [m for m in stage.provider.requests[-1].messages if isinstance(m, kind)]


async def test_a_tool_that_ends_after_its_turn_was_cancelled_changes_nothing(
    tmp_path, autojump_clock
):
    let_go, over = trio.Event(), trio.Event()

    async def deaf(arguments, operation):
        await operation.dispatch()
        with trio.CancelScope(shield=True):
            await let_go.wait()
        over.set()
        return ToolResult("written")

    async with open_stage(
        tmp_path, replies(ask(1), DONE, DONE), Probe(body=deaf)
    ) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        await stage.session.prompt("again")
        (told,) = sent(stage, ToolMessage)
        assert told.is_error
        assert "may or may not" in told.text or "interrupted" in told.text
        let_go.set()
        await over.wait()
        await wait_all_tasks_blocked()
        await stage.session.prompt("and now?")
        # The model is told the same as before, and the call ran once.
        assert sent(stage, ToolMessage) == [told]
        journal = stage.journal()
        assert sum(isinstance(r, DispatchCommitted) for r in journal) == 1
        assert sum(isinstance(r, ToolOutcome) for r in journal) == 0


async def test_a_cancel_while_the_model_thinks_keeps_the_question_and_the_thought(
    tmp_path,
):
    script = replies([Think("let me see"), Hang()], DONE)
    async with open_stage(tmp_path, script) as stage:
        results = []
        async with trio.open_nursery() as nursery:

            async def prompt():
                results.append(await stage.session.prompt("why?"))

            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        thoughts = [
            b.text for b in results[0].message.blocks if isinstance(b, ReasoningBlock)
        ]
        assert thoughts == ["let me see"]
        await stage.session.prompt("go on")
        users = [m.parts for m in sent(stage, UserMessage)]
        assert users == [(TextPart("why?"),), (TextPart("go on"),)]
        (note,) = sent(stage, AssistantMessage)
        assert "stopped by the user" in note.text


async def test_signed_thinking_is_kept_from_another_model_and_given_back_to_its_own(
    tmp_path,
):
    signed = {"reasoning_details": [{"signature": "s"}]}
    first = [Think("hm", signed), Say("yes"), Halt()]
    async with open_stage(tmp_path, replies(first, DONE, DONE)) as stage:
        own = (await stage.session.prompt("one")).message.metadata.model
        await stage.session.configure(model="another")
        await stage.session.prompt("two")
        assert all(m.reasoning == () for m in sent(stage, AssistantMessage))
        await stage.session.configure(model=own)
        await stage.session.prompt("three")
        message = sent(stage, AssistantMessage)[0]
        assert [part.options for part in message.reasoning] == [signed]


async def test_refusals_until_the_end_cost_one_turn_and_not_the_session(
    tmp_path, autojump_clock
):
    busy = [Fail("slow down", status=429)]
    async with open_stage(tmp_path, replies(busy, busy, busy, DONE)) as stage:
        assert (await stage.session.prompt("go")).outcome == "error"
        assert (await stage.session.prompt("go")).text == "done"


#### Bytes that lie about what they are


def piece(delta: str, finish: str = "null") -> bytes:
    choice = f'{{"index":0,"delta":{delta},"finish_reason":{finish}}}'
    return chunk(f'data: {{"choices":[{choice}]}}\n\n'.encode())


def start(arguments: str, name: str = "probe") -> bytes:
    function = f'{{"name":"{name}","arguments":"{arguments}"}}'
    call = f'{{"index":0,"id":"c1","type":"function","function":{function}}}'
    return piece(f'{{"tool_calls":[{call}]}}')


GOOD = [
    chunked_head(),
    piece('{"content":"done"}'),
    piece("{}", '"stop"'),
    chunk(b"data: [DONE]\n\n"),
    b"0\r\n\r\n",
]
HALF = '{\\"n\\":'


async def test_a_half_call_of_a_broken_reply_is_neither_run_nor_asked_for_again(
    tmp_path,
):
    broken = [chunked_head(), piece('{"content":"I do"}'), start(HALF), Step.RESET]
    async with serve_raw(broken, GOOD) as server:
        provider, probe = ChatCompletionsProvider(server.base_url), Probe()
        async with open_stage(tmp_path, [], probe, provider=provider) as stage:
            turn = await stage.session.prompt("go")
            assert (turn.outcome, len(server.requests)) == ("error", 1)
            assert turn.text == "I do"
            assert (await stage.session.prompt("again")).text == "done"
            assert probe.operations == []
        await provider.aclose()


async def test_a_cut_call_that_is_called_whole_is_refused_and_not_run_as_empty(
    tmp_path,
):
    lie = [
        chunked_head(),
        start(HALF),
        piece("{}", '"tool_calls"'),
        chunk(b"data: [DONE]\n\n"),
        b"0\r\n\r\n",
    ]
    async with serve_raw(lie, GOOD) as server:
        provider, probe = ChatCompletionsProvider(server.base_url), Probe()
        async with open_stage(tmp_path, [], probe, provider=provider) as stage:
            turn = await stage.session.prompt("go")
            (call,) = calls_of(turn.message)
            assert (call.status, probe.operations) == ("error", [])
            assert turn.text == "done"
            # Kept as it came, sent back as an object.
            assert call.arguments == '{"n":'
            assert b'"arguments":"{}"' in server.requests[-1].body
        await provider.aclose()


#### Answers


async def test_a_denial_is_of_one_call_and_its_reason_reaches_the_model(tmp_path):
    probe = Probe(permission="do it")
    script = replies(ask(1), ask(2), DONE)
    async with open_stage(tmp_path, script, probe) as stage:
        turns = []
        async with trio.open_nursery() as nursery:

            async def prompt():
                turns.append(await stage.session.prompt("go"))

            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            (first,) = await stage.session.interactions()
            await stage.session.answer(first.id, Deny("use the other folder"))
            await wait_all_tasks_blocked()
            assert "use the other folder" in sent(stage, ToolMessage)[-1].text
            # The same tool is asked for anew, with a question of its own.
            (second,) = await stage.session.interactions()
            assert second.id != first.id
            await stage.session.answer(second.id, Grant())
        denied, granted = calls_of(turns[0].message)
        assert (denied.status, granted.status) == ("error", "success")
        assert probe.calls == [{"n": 2}]


@pytest.mark.parametrize("denied", [0, 1, 2])
async def test_of_three_calls_the_denied_one_alone_does_not_run(tmp_path, denied):
    probe = Probe(permission="do it")
    async with open_stage(tmp_path, replies(ask(0, 1, 2), DONE), probe) as stage:
        turns = []
        async with trio.open_nursery() as nursery:

            async def prompt():
                turns.append(await stage.session.prompt("go"))

            nursery.start_soon(prompt)
            for number in range(3):
                await wait_all_tasks_blocked()
                question = (await stage.session.interactions())[0]
                answer = Deny("no") if number == denied else Grant()
                await stage.session.answer(question.id, answer)
        statuses = [call.status for call in calls_of(turns[0].message)]
        expected = ["error" if n == denied else "success" for n in range(3)]
        assert statuses == expected
        assert probe.calls == [{"n": n} for n in range(3) if n != denied]


async def test_a_tool_that_fails_while_it_is_stopped_leaves_a_session_that_works(
    tmp_path,
):
    async def careless(arguments, operation):
        await operation.dispatch()
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("no such file to clean up")

    script = replies(ask(1), DONE, ask(2), DONE)
    async with open_stage(tmp_path, script, Probe(body=careless)) as stage:
        for _ in range(2):
            outcomes = []

            async def prompt(outcomes=outcomes):
                outcomes.append((await stage.session.prompt("go")).stop_reason)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(prompt)
                await wait_all_tasks_blocked()
                await stage.session.cancel()
            assert outcomes == ["user_stop"]
            assert (await stage.session.prompt("on")).text == "done"


async def test_an_owner_that_was_frozen_writes_nothing_when_it_wakes(tmp_path):
    awake = trio.Event()

    async def freeze(arguments, operation):
        await operation.dispatch()
        await awake.wait()
        return ToolResult("written")

    async with open_stage(tmp_path, replies(ask(1), DONE), Probe(body=freeze)) as stage:
        session = stage.session
        async with trio.open_nursery() as nursery:

            async def prompt():
                with pytest.raises(TurnFailedError, match="no longer current"):
                    await session.prompt("go")

            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            with closing(open_store(stage.state)) as store:
                # So late that the owner counts as dead although its process is there.
                member = store.join("the next one", "", 1e9, now=1e12)
                grant: Any = store.acquire(member, session.id, now=1e12)
                (verdict,) = recover_session(store, grant, 1e12).verdicts
                assert verdict.run_class == "indeterminate"
                tape = stage.tape()
                awake.set()
                await wait_all_tasks_blocked()
                assert stage.tape() == tape
                with pytest.raises(StorageError, match="declared dead"):
                    await session.prompt("again")
                assert stage.tape() == tape


async def test_a_steer_between_two_calls_lets_the_batch_settle_and_is_read_then(
    tmp_path,
):
    at_first, go_on = trio.Event(), trio.Event()

    async def slow(arguments, operation):
        await operation.dispatch()
        if arguments["n"] == 1:
            at_first.set()
            await go_on.wait()
        return ToolResult(f"result {arguments['n']}")

    probe = Probe(body=slow)
    async with open_stage(tmp_path, replies(ask(1, 2), DONE), probe) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await at_first.wait()
            await stage.session.steer("not the second")
            go_on.set()
        await wait_all_tasks_blocked()
        assert [m.text for m in sent(stage, ToolMessage)] == ["result 1", "result 2"]
        last = stage.provider.requests[-1].messages[-1]
        assert isinstance(last, UserMessage)
        assert last.parts == (TextPart("not the second"),)
        assert len(stage.provider.requests) == 2
