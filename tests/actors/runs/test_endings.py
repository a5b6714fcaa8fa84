from __future__ import annotations

import pytest
import trio
from kit.raw_server import Step, head, serve_raw
from kit.rehearsal import Probe, calls_of, open_stage, replies, spy_on
from kit.run_ports import break_view
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.kernel import CancelCause
from greenroom.actors.providers import (
    Call,
    ChatCompletionsProvider,
    ContextOverflowError,
    End,
    Fail,
    Halt,
    Hang,
    Raise,
    Say,
)
from greenroom.engine import TurnFailedError
from greenroom.protocol import (
    ActionBlock,
    DispatchCommitted,
    ErrorBlock,
    JournalError,
    RunTerminal,
    StorageError,
)
from greenroom.protocol.providers import OVERFLOW_CODE, make_failure

OVERFLOWN = ContextOverflowError(
    make_failure("too long", OVERFLOW_CODE, retryable=False)
)
DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


def terminals(stage):
    return [
        (r.outcome, r.stop_reason)
        for r in stage.journal()
        if isinstance(r, RunTerminal)
    ]


@pytest.mark.contract("RUN-10")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            OVERFLOWN,
            "context_window",
        ),
        (RuntimeError("no"), "pre_stream_error"),
        (StorageError("no"), "pre_stream_error"),
        (trio.Cancelled, "user_stop"),
    ],
)
async def test_what_is_raised_before_the_stream_gets_a_terminal(
    tmp_path, error, reason
):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        loaded = stage.session._sessions.loaded(stage.session.id)
        session = loaded.session  # pyright: ignore[reportOptionalMemberAccess]
        results = []

        async def prompt():
            results.append(await stage.session.prompt("go"))

        spy = spy_on(stage)
        if error is trio.Cancelled:
            spy.before = lambda what: (
                session.turn.ref.cancel(CancelCause.USER_STOP)  # pyright: ignore[reportOptionalMemberAccess]
                if what == "RunStarted"
                else None
            )
        else:
            break_view(stage, error)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
        outcome = "aborted" if reason == "user_stop" else "error"
        assert terminals(stage) == [(outcome, reason)]
        assert results[0].stop_reason == reason
        assert stage.provider.requests == []
        spy.before = lambda what: None
        assert (await stage.session.prompt("again")).text == "done"


@pytest.mark.contract("RUN-11")
async def test_a_message_that_is_not_stored_after_the_terminal_is_mended_later(
    tmp_path,
):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        spy = spy_on(stage)
        failed = []

        def fail(what):
            if what == "message/recorded" and ("RunTerminal" in dict(spy.log)):
                failed.append(what)
                return StorageError("no room")
            return None

        spy.fail = fail
        with pytest.raises(TurnFailedError, match="not stored") as error:
            await stage.session.prompt("go")
        assert type(error.value.__cause__).__name__ == "CommittedProjectionError"
        assert len(failed) == 1
        assert terminals(stage) == [("completed", "complete")]
        # Loading it again mends the message, and adds no terminal.
        assert (await stage.session.prompt("again")).text == "done"
        assert terminals(stage) == [("completed", "complete")] * 2
        first = (await stage.session.messages())[1]
        assert first.status == "error"


@pytest.mark.contract("RUN-12")
async def test_two_failures_surface_as_one_group_with_their_types(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE), Probe()) as stage:

        def fail(what):
            if what in ("ToolOutcome", "RunTerminal"):
                return JournalError("conflicting_fact", what)
            return None

        spy_on(stage).fail = fail
        with pytest.raises(TurnFailedError) as failed:
            await stage.session.prompt("go")
        matched = []
        try:
            raise failed.value.__cause__  # pyright: ignore[reportGeneralTypeIssues]
        except* JournalError as group:
            matched = [str(exc) for exc in group.exceptions]
        assert matched == ["ToolOutcome", "RunTerminal"]


@pytest.mark.contract("RUN-15")
@pytest.mark.slow  # real sockets
@pytest.mark.parametrize("where", ["connect", "headers", "body"])
async def test_a_cancel_closes_the_exchange_wherever_it_is(tmp_path, where):
    text = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    script = {"headers": [Step.HANG], "body": [head(), text, Step.HANG]}.get(where, [])
    async with serve_raw(script) as server:
        url = server.base_url
        if where == "connect":
            import socket

            # A backlog that is full: nobody accepts, so the connection never comes.
            listener = socket.socket()
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            fill = [socket.socket() for _ in range(4)]
            for one in fill:
                one.setblocking(False)
                one.connect_ex(listener.getsockname())
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        provider = ChatCompletionsProvider(url)
        async with provider, open_stage(tmp_path, [], provider=provider) as stage:
            results = []

            async def prompt():
                results.append(await stage.session.prompt("go"))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(prompt)
                if where == "connect":
                    await trio.sleep(0.1)
                else:
                    await server.reached.wait()
                with trio.fail_after(2):
                    await stage.session.cancel()
                    if where != "connect":
                        await server.hung_up.wait()
            assert results[0].stop_reason == "user_stop"
        if where == "connect":
            for one in [*fill, listener]:
                one.close()


STOPS = {
    "complete": ([Say("a"), Halt()], ("completed", "complete", "sent")),
    "max_tokens": ([Say("a"), Halt("max_tokens")], ("completed", "max_tokens", "sent")),
    "max_turn_requests": (
        [Halt("max_turn_requests"), Say("")],
        ("error", "empty_response", "error"),
    ),
    "max_turn_requests with text": (
        [Say("a"), Halt("max_turn_requests")],
        ("completed", "max_turn_requests", "sent"),
    ),
    "complete, nothing": ([Halt()], ("error", "empty_response", "error")),
    "max_tokens, nothing": (
        [Halt("max_tokens")],
        ("error", "empty_response", "error"),
    ),
}


@pytest.mark.contract("RUN-16")
@pytest.mark.parametrize("case", STOPS)
async def test_successful_stops_need_content_and_keep_their_reason(tmp_path, case):
    cues, expected = STOPS[case]
    async with open_stage(tmp_path, replies(cues), replayable=False) as stage:
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.stop_reason, turn.message.status) == expected
        assert terminals(stage) == [expected[:2]]


FAULTS = {
    "stop error": ([Say("a"), Halt("error")], "provider_error"),
    "no stop": ([Say("a"), End()], "provider_error"),
    "tool stop without a call": ([Say("a"), Halt("tool_use")], "provider_error"),
    "overflow": ([Fail("prompt is too long", status=400)], "context_window"),
    "raised": ([Say("a"), Raise("bug")], "provider_error"),
    "nothing": ([Halt()], "empty_response"),
}


@pytest.mark.contract("RUN-17")
@pytest.mark.parametrize("case", FAULTS)
async def test_faults_of_the_provider_have_exact_terminals(tmp_path, case):
    cues, reason = FAULTS[case]
    async with open_stage(tmp_path, replies(cues), replayable=False) as stage:
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.stop_reason) == ("error", reason)
        assert terminals(stage) == [("error", reason)]
        (error,) = [b for b in turn.message.blocks if isinstance(b, ErrorBlock)]
        if reason == "empty_response":
            assert error.code == "no_model_response"
        # The session stays usable: one fault ends one turn.
        stage.provider.script = lambda request: DONE
        assert (await stage.session.prompt("again")).text == "done"


CAUSES = {
    CancelCause.USER_STOP: ("aborted", "user_stop", "user_canceled"),
    CancelCause.SHUTDOWN: ("aborted", "shutdown", "session_interrupted"),
    CancelCause.PARENT: ("aborted", "parent", "parent"),
    CancelCause.SUPERSEDED: ("aborted", "superseded", "superseded"),
    CancelCause.DEADLINE: ("error", "deadline", "deadline"),
    CancelCause.PROCESS_EXIT: ("error", "process_exit", "process_exit"),
}


@pytest.mark.parametrize("cause", CAUSES)
async def test_each_cause_of_a_cancel_has_its_terminal_and_its_code(tmp_path, cause):
    async with open_stage(tmp_path, replies([Say("half"), Hang()])) as stage:
        results = []

        async def prompt():
            results.append(await stage.session.prompt("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            loaded = stage.session._sessions.loaded(stage.session.id)
            loaded.session.turn.ref.cancel(cause)  # pyright: ignore[reportOptionalMemberAccess]
        outcome, reason, code = CAUSES[cause]
        assert terminals(stage) == [(outcome, reason)]
        (turn,) = results
        assert (turn.message.status, turn.text) == ("error", "half")
        assert turn.message.metadata.error_code == code


@pytest.mark.contract("RUN-20")
async def test_an_error_is_not_undone_by_a_later_stop(tmp_path):
    script = replies([Say("text"), Fail("the provider's own words"), Halt()])
    async with open_stage(tmp_path, script) as stage:
        turn = await stage.session.prompt("go")
        assert terminals(stage) == [("error", "provider_error")]
        assert turn.text == "text"
        assert turn.error == "the provider's own words"


@pytest.mark.slow  # 128 rounds
@pytest.mark.contract("TOL-07")
@pytest.mark.parametrize(("done", "runs"), [(126, True), (127, False)])
async def test_the_batch_that_crosses_the_limit_of_calls_runs_none(
    tmp_path, done, runs
):
    singles = [[Call("probe", {"n": n}), Halt("tool_use")] for n in range(done)]
    pair = [Call("probe", {"n": -1}), Call("probe", {"n": -2}), Halt("tool_use")]
    probe = Probe()
    async with open_stage(tmp_path, replies(*singles, pair, DONE), probe) as stage:
        turn = await stage.session.prompt("go")
        assert len(probe.calls) == (128 if runs else 127)
        assert turn.outcome == "completed"
        if not runs:
            assert turn.stop_reason == "max_tool_calls"
            last = calls_of(turn.message)[-2:]
            assert [call.status for call in last] == ["error", "error"]
            assert all("limit" in (call.response or "") for call in last)
            dispatched = [
                r for r in stage.journal() if isinstance(r, DispatchCommitted)
            ]
            assert len(dispatched) == 127


CUT = [Call("probe", {"n": 1}), Call("asks", '{"a":', cut=True), Halt("max_tokens")]


@pytest.mark.contract("TOL-14")
async def test_calls_of_a_reply_cut_by_the_limit_are_told_so_and_nothing_else(tmp_path):
    probe, asks = Probe(), Probe(name="asks", permission="?")
    async with open_stage(tmp_path, replies(CUT, DONE), probe, asks) as stage:
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.text) == ("completed", "done")
        assert probe.operations == asks.operations == []
        assert turn.message.metadata.tool_calls == 0
        assert turn.message.metadata.no_progress_tool_loop is None
        assert not [b for b in turn.message.blocks if isinstance(b, ActionBlock)]
        assert all("output limit" in (c.response or "") for c in calls_of(turn.message))


@pytest.mark.contract("TOL-15")
async def test_one_round_follows_a_cut_batch_and_a_second_cut_ends_the_turn(tmp_path):
    asks = Probe(name="asks")
    async with open_stage(tmp_path, replies(CUT, CUT, DONE), Probe(), asks) as stage:
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.stop_reason) == ("completed", "max_tokens")
        assert len(stage.provider.requests) == 2
    (tmp_path / "b").mkdir()
    async with open_stage(tmp_path / "b", replies(CUT, DONE), Probe(), asks) as stage:
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.stop_reason) == ("completed", "complete")


@pytest.mark.contract("TOL-09")
async def test_a_run_keeps_the_permission_mode_it_began_with(tmp_path):
    gate = trio.Event()
    probe = Probe(permission="?", gate=gate)
    script = replies(ASK, ASK, DONE, ASK, DONE)
    async with open_stage(
        tmp_path, script, probe, permission_mode="full_access"
    ) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await probe.reached.wait()
            await stage.session.configure(permission_mode="default")
            gate.set()
        assert len(probe.calls) == 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            assert len(await stage.session.interactions()) == 1
            assert len(probe.calls) == 2
            await stage.session.cancel()


async def test_a_call_counts_when_it_starts(tmp_path):
    async def fails(arguments, operation):
        await operation.dispatch()
        raise RuntimeError("no")

    from greenroom.protocol import Deny

    raising, asks = (
        Probe(name="raising", body=fails),
        Probe(name="asks", permission="?"),
    )
    calls = [Call("raising"), Call("nobody"), Call("asks"), Halt("tool_use")]
    async with open_stage(tmp_path, replies(calls, DONE), raising, asks) as stage:
        results = []

        async def prompt():
            results.append(await stage.session.prompt("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            (asked,) = await stage.session.interactions()
            await stage.session.answer(asked.id, Deny())
        assert results[0].message.metadata.tool_calls == 1
