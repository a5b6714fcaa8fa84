"""The steps of an attempt, and the order in which what it brought is delivered."""

from __future__ import annotations

import pytest
import trio
from kit.attempts import HANG, Bench
from kit.rehearsal import Probe, open_stage, replies
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.providers import Call, Fail, Halt, Hang, RateLimit, Say, Use
from greenroom.actors.runs._attempt import ProviderRaisedError
from greenroom.actors.runs._attempts import LostAuthorityError
from greenroom.protocol import (
    ProviderFailure,
    StatusChanged,
    Stop,
    TextDelta,
    Usage,
    UsageReported,
)

DONE = [Say("done"), Halt()]
BUSY = ProviderFailure(message="overloaded", status=503)
REFUSED = ProviderFailure(message="no", status=401)
TEXT, STOP = TextDelta("done"), Stop(reason="complete")
GOOD = [TEXT, STOP]


def used(tokens):
    return UsageReported(usage=Usage(input=tokens, output=1, total=tokens + 1))


def total(tokens, attempts):
    usage = Usage(input=tokens, output=attempts, total=tokens + attempts)
    return UsageReported(usage=usage)


#### Steps


@pytest.mark.contract("TRY-21")
async def test_the_steps_of_an_attempt_have_one_order(autojump_clock: MockClock):
    bench = Bench([[BUSY], GOOD])
    await bench.run()
    assert bench.log == [
        "gate",
        "wait for rate_gate",
        "clear",
        "authority (1, 0)",
        "stream (1, 1)",
        "clear",
        "record retry_scheduled",
        "wait for backoff",
        "clear",
        "gate",
        "wait for rate_gate",
        "clear",
        "authority (1, 1)",
        "stream (1, 2)",
        "clear",
        "record none",
    ]


@pytest.mark.contract("TRY-21")
async def test_a_cancel_between_gate_and_stream_counts_no_attempt():
    with trio.CancelScope() as scope:
        bench = Bench([GOOD], at_clear=scope.cancel)
        await bench.run()
    assert scope.cancelled_caught
    assert bench.counted == (1, 0)
    # Not even the authority is asked: the check for a cancel comes before it.
    assert bench.log == ["gate", "wait for rate_gate", "clear"]


@pytest.mark.contract("TRY-21")
async def test_a_run_that_is_not_the_current_one_sends_nothing():
    asked = []

    def refuse(seq):
        asked.append(seq)
        return False

    bench = Bench([GOOD], authority=refuse)
    with pytest.raises(LostAuthorityError, match="not the session's current one"):
        await bench.run()
    assert bench.counted == (1, 0)
    # It is told which request, so that it can ask for the view of that one.
    assert asked == [1]
    assert bench.streams == [GOOD]


@pytest.mark.contract("TRY-21")
async def test_a_session_vouches_for_its_current_run_alone(tmp_path):
    async with open_stage(tmp_path, replies([Hang()], DONE)) as stage:
        seen = []
        loaded = stage.session._sessions.loaded(stage.session.id)
        assert loaded is not None
        loaded.session.ports = Overheard(loaded.session.ports, seen)  # pyright: ignore[reportAttributeAccessIssue]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            assert [authority(1) for authority in seen] == [True]
            await stage.session.cancel()
        assert [authority(1) for authority in seen] == [False]


class Overheard:
    """A session's ports that note the authority of each run."""

    def __init__(self, inner, seen):
        self.inner, self.seen = inner, seen

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def for_run(self, settings, hub, authority):
        self.seen.append(authority)
        return self.inner.for_run(settings, hub, authority)


#### Delivery


@pytest.mark.contract("TRY-15")
async def test_a_success_delivers_the_usage_of_all_attempts_and_then_the_stop(
    autojump_clock: MockClock,
):
    first = [used(5), STOP, BUSY]
    second = [used(1), TEXT, STOP, used(7)]
    bench = Bench([first, second])
    await bench.run()
    assert bench.delivered == [TEXT, total(12, 2), STOP]


@pytest.mark.contract("TRY-15")
@pytest.mark.parametrize("failure", [BUSY, REFUSED])
async def test_a_failure_is_delivered_after_the_usage_and_before_the_stop(failure):
    bench = Bench([[TEXT, Stop(reason="error"), failure, used(3)]])
    await bench.run()
    assert bench.delivered == [TEXT, total(3, 1), failure, Stop(reason="error")]


@pytest.mark.contract("TRY-15")
async def test_what_the_stream_raises_is_raised_last():
    bench = Bench([[used(3), STOP, REFUSED, RuntimeError("a bug")]])
    with pytest.raises(ProviderRaisedError) as caught:
        await bench.run()
    assert bench.delivered == [total(3, 1), REFUSED, STOP]
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.contract("TRY-15")
async def test_a_raise_alone_is_told_once_and_as_what_it_was():
    bench = Bench([[used(3), RuntimeError("a bug")]])
    with pytest.raises(ProviderRaisedError, match="RuntimeError: a bug") as caught:
        await bench.run()
    assert bench.delivered == [total(3, 1)]
    assert caught.value.failure.code == "provider_raised"
    assert bench.log[-1] == "record not_retryable"


@pytest.mark.contract("TRY-15")
async def test_an_abort_is_raised_after_the_usage_and_nothing_else(
    autojump_clock: MockClock,
):
    bench = Bench([[used(5), BUSY], [used(3), STOP, REFUSED, HANG]])
    with trio.move_on_after(10) as scope:
        await bench.run()
    assert scope.cancelled_caught
    assert bench.delivered == [total(8, 2)]


@pytest.mark.contract("TRY-15")
async def test_usage_is_delivered_before_a_raise_between_attempts(
    autojump_clock: MockClock,
):
    answers = [True, False]
    bench = Bench([[used(5), BUSY]], authority=lambda seq: answers.pop(0))
    with pytest.raises(LostAuthorityError):
        await bench.run()
    assert bench.delivered == [total(5, 1)]


@pytest.mark.contract("TRY-15")
async def test_a_cancelled_turn_knows_what_its_attempts_used(tmp_path):
    script = replies([Use(9, 2), Say("half"), Hang()])
    async with open_stage(tmp_path, script) as stage:
        results = []

        async def prompt():
            results.append(await stage.session.prompt("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        assert results[0].usage == Usage(input=9, output=2, total=11)


#### The gate, in an engine


class Timed:
    """A script that notes when each request was sent."""

    def __init__(self, *rounds):
        self.rounds, self.times = list(rounds), []

    def __call__(self, request):
        self.times.append(trio.current_time())
        return self.rounds.pop(0)


async def statuses(stage, prompt):
    """The status events of a session while *prompt* is awaited."""
    async with stage.session.follow() as feed:
        await prompt()
        stage.session._sessions.hub(stage.session.id).close()
        return [event async for event in feed if isinstance(event, StatusChanged)]


@pytest.mark.contract("TRY-20")
async def test_sessions_of_one_provider_wait_in_one_queue(
    tmp_path, autojump_clock: MockClock
):
    script = Timed(DONE, DONE, DONE)
    limit = RateLimit(qps=0.25)
    async with open_stage(tmp_path, script, rate_limit=limit) as stage:
        other = await stage.engine.create_session(workspace=tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "one")
            await wait_all_tasks_blocked()
            nursery.start_soon(other.prompt, "two")
        assert (await other.prompt("three")).text == "done"
        gaps = [b - a for a, b in zip(script.times, script.times[1:], strict=False)]
        assert gaps == [pytest.approx(4), pytest.approx(4)]


@pytest.mark.contract("TRY-20")
async def test_every_attempt_enters_again_and_a_wait_commits_no_output(
    tmp_path, autojump_clock: MockClock
):
    busy = [Fail("overloaded", status=503)]
    script = Timed(DONE, busy, DONE)
    async with open_stage(tmp_path, script, rate_limit=RateLimit()) as stage:
        await stage.session.prompt("first")

        async def prompt():
            assert (await stage.session.prompt("go")).text == "done"

        seen = await statuses(stage, prompt)
        gaps = [b - a for a, b in zip(script.times, script.times[1:], strict=False)]
        assert gaps == [pytest.approx(10), pytest.approx(10)]
        waits = [event for event in seen if event.waiting_for == "rate_gate"]
        # Once for the send and once for its retry, which has waited a while already.
        assert [event.notice for event in waits] == [
            f"__rate_limit__:{waits[0].run_id}"
        ] * 2
        assert waits[0].remaining == pytest.approx(10)
        assert waits[1].remaining == pytest.approx(9.5, abs=0.2)
        for wait in waits:
            after = seen[seen.index(wait) + 1]
            assert (after.notice, after.waiting_for) == (None, None)


@pytest.mark.contract("TRY-20")
async def test_a_cancelled_wait_clears_its_notice_and_lets_the_next_one_pass(
    tmp_path, mock_clock: MockClock
):
    script = Timed(DONE, DONE)
    async with open_stage(tmp_path, script, rate_limit=RateLimit()) as stage:
        other = await stage.engine.create_session(workspace=tmp_path)
        await stage.session.prompt("first")
        async with trio.open_nursery() as nursery:

            async def prompt():
                turn = await stage.session.prompt("second")
                assert (turn.outcome, turn.stop_reason) == ("aborted", "user_stop")

            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            nursery.start_soon(other.prompt, "third")
            await wait_all_tasks_blocked()
            hub = stage.session._sessions.hub(stage.session.id)
            assert hub.status_event().notice is not None
            await stage.session.cancel()
            assert hub.status_event().notice is None
            assert hub.status_event().waiting_for is None
            later = stage.session._sessions.hub(other.id).status_event()
            assert later.remaining == pytest.approx(10)
            mock_clock.autojump_threshold = 0
        assert script.times[1] - script.times[0] == pytest.approx(10)


async def test_a_review_of_a_call_waits_in_the_same_queue(
    tmp_path, autojump_clock: MockClock
):
    call = [Call("probe", {"n": 1}), Halt("tool_use")]
    allowed = [Say('{"decision": "auto_allow", "reason": "fine"}'), Halt()]
    script, limit = Timed(call, allowed, DONE), RateLimit(qps=0.25)
    probe, mode = Probe(permission="?"), "auto_approve"
    async with open_stage(
        tmp_path, script, probe, rate_limit=limit, permission_mode=mode
    ) as stage:
        assert (await stage.session.prompt("go")).text == "done"
        gaps = [b - a for a, b in zip(script.times, script.times[1:], strict=False)]
        assert gaps == [pytest.approx(4), pytest.approx(4)]


async def test_a_limit_for_a_provider_that_is_not_there_is_refused(tmp_path):
    from greenroom.engine import open_engine

    with pytest.raises(ValueError, match="rate limit for no provider: 'typo'"):
        async with open_engine(state=tmp_path, rate_limits={"typo": RateLimit()}):
            pass
