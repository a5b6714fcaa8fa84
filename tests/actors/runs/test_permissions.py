"""Who decides whether a call may run: nobody, the mode, the reviewer, the user."""

from __future__ import annotations

import json

import pytest
import trio
from kit.rehearsal import Probe, calls_of, open_stage, replies
from kit.run_ports import FakeReviewer, change_run_ports
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.tools import Needs, PermissionRequired, ToolResult
from greenroom.protocol import (
    REVIEW_INSTRUCTIONS,
    Deny,
    DispatchCommitted,
    Grant,
    Review,
    SystemMessage,
)
from greenroom.testing import Call, Fail, Halt, Hang, RehearsalProvider, Say

ASK = [Call("probe", {"n": 1}), Halt("tool_use")]
DONE = [Say("done"), Halt()]
MODES = ["default", "auto_approve", "full_access"]


class Wanting:
    """A tool whose precheck, or whose run, says what it needs."""

    read_only = parallel_safe = False

    def __init__(self, needs, itself=False):
        self.needs, self.itself = needs, itself
        self.definition = Probe().definition
        self.granted = []

    async def precheck(self, arguments, context):
        return Needs(None, "probe", "other") if self.itself else self.needs

    async def run(self, arguments, operation):
        self.granted.append(operation.granted)
        if self.itself and not operation.granted and self.needs_asking:
            raise PermissionRequired(self.needs)
        await operation.dispatch()
        return ToolResult("ran")

    @property
    def needs_asking(self):
        return self.needs.permission is not None or self.needs.always_ask


async def outcome_of(tmp_path, mode, tool, reviewer):
    """Play one call: did it run, was the user asked, with which origin."""
    async with open_stage(
        tmp_path, replies(ASK, DONE, DONE), tool, permission_mode=mode
    ) as stage:
        change_run_ports(stage, reviewer=reviewer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            asked = await stage.session.interactions()
            if asked:
                assert not [
                    r for r in stage.journal() if isinstance(r, DispatchCommitted)
                ]
                await stage.session.answer(asked[0].id, Deny())
        return [action.origin for action in asked]


@pytest.mark.contract("TOL-10")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("permission", [None, "do it"])
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("itself", [False, True])
async def test_the_mode_the_precheck_and_the_flag_decide_together(
    tmp_path, mode, permission, always, itself
):
    needs = Needs(permission, "probe", "other", always_ask=always)
    tool = Wanting(needs, itself=itself)
    allows = FakeReviewer(lambda call: Review("auto_allow"))
    origins = await outcome_of(tmp_path, mode, tool, allows)
    asks = always or (permission is not None and mode == "default")
    origin = "post-call-permission" if itself else "pre-check-permission"
    assert origins == ([origin] if asks else [])
    reviewed = mode == "auto_approve" and permission is not None and not always
    assert len(allows.asked) == reviewed


@pytest.mark.contract("TOL-10")
async def test_a_tool_that_was_granted_and_asks_again_asks_the_user(tmp_path):
    async def greedy(arguments, operation):
        raise PermissionRequired(Needs("more", "probe", "other"))

    async with open_stage(
        tmp_path, replies(ASK, DONE), Probe(body=greedy), permission_mode="full_access"
    ) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            (asked,) = await stage.session.interactions()
            assert (asked.title, asked.origin) == ("more", "post-call-permission")
            await stage.session.answer(asked.id, Deny())
        (message,) = (await stage.session.messages())[1:]
        # Begun twice, but one call.
        assert message.metadata.tool_calls == 1


@pytest.mark.contract("TOL-11")
@pytest.mark.parametrize(
    ("review", "response", "asks", "counted"),
    [
        (Review("auto_allow"), "result of probe 1", False, 1),
        (
            Review("block", "it deletes"),
            "blocked this call, saying: it deletes",
            False,
            0,
        ),
        (Review("ask_user"), "the user denied this call", True, 0),
    ],
)
async def test_the_reviewer_allows_blocks_or_asks(
    tmp_path, review, response, asks, counted
):
    probe = Probe(permission="do it")
    reviewer = FakeReviewer(lambda call: review)
    async with open_stage(
        tmp_path, replies(ASK, DONE), probe, permission_mode="auto_approve"
    ) as stage:
        change_run_ports(stage, reviewer=reviewer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            asked = await stage.session.interactions()
            assert bool(asked) == asks
            for action in asked:
                await stage.session.answer(action.id, Deny())
        message = (await stage.session.messages())[1]
        (call,) = calls_of(message)
        assert response in (call.response or "")
        assert len(probe.calls) == counted
        assert message.metadata.tool_calls == counted
        dispatched = [r for r in stage.journal() if isinstance(r, DispatchCommitted)]
        assert len(dispatched) == counted
    (seen,) = reviewer.asked
    assert (seen.tool, seen.permission) == ("probe", "do it")
    assert json.loads(seen.arguments) == {"n": 1}
    assert "go" in repr(reviewer.conversations[0])


@pytest.mark.contract("TOL-11")
async def test_a_reviewable_tool_is_reviewed_though_it_asks_nothing(tmp_path):
    needs = Needs(None, "probe", "other", reviewable=True)
    blocks = FakeReviewer(lambda call: Review("block"))
    for mode, times in [("auto_approve", 1), ("default", 0), ("full_access", 0)]:
        blocks.asked.clear()
        (tmp_path / mode).mkdir()
        tool = Wanting(needs)
        assert await outcome_of(tmp_path / mode, mode, tool, blocks) == []
        assert len(blocks.asked) == times
        assert len(tool.granted) == 1 - times


@pytest.mark.contract("TOL-11")
async def test_a_reviewer_that_fails_has_allowed_nothing(tmp_path):
    def broken(call):
        raise ValueError("no")

    probe = Probe(permission="do it")
    origins = await outcome_of(tmp_path, "auto_approve", probe, FakeReviewer(broken))
    assert origins == ["pre-check-permission"]
    assert probe.calls == []


#### The reviewer that asks a model


def model(review):
    """Return a model that plays the turn and reviews as told, and its reviews."""
    rounds, reviews = iter([ASK, DONE]), []

    def script(request):
        first = request.messages[0]
        if isinstance(first, SystemMessage) and first.text == REVIEW_INSTRUCTIONS:
            reviews.append(request)
            return review
        return next(rounds)

    return RehearsalProvider(script), reviews


@pytest.mark.contract("TOL-11")
@pytest.mark.parametrize(
    ("review", "asks"),
    [
        ([Say('{"decision":"auto_allow"}'), Halt()], False),
        ([Say("yes, go on"), Halt()], True),
        ([Halt()], True),
        ([Fail("no", code="invalid_request", status=400)], True),
    ],
)
async def test_the_built_in_reviewer_asks_the_session_s_model(
    tmp_path, review, asks, autojump_clock
):
    provider, reviews = model(review)
    probe = Probe(permission="do it")
    async with (
        open_stage(
            tmp_path,
            [],
            probe,
            provider=provider,
            permission_mode="auto_approve",
            system_prompt="the secret of the house",
        ) as stage,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(stage.session.prompt, "x" * 3_000)
        await trio.sleep(29)
        asked = await stage.session.interactions()
        assert bool(asked) == asks
        assert bool(probe.calls) == (not asks)
        for action in asked:
            await stage.session.answer(action.id, Grant())
    assert probe.calls == [{"n": 1}]
    request = reviews[0]
    assert request.tools == ()
    (part,) = request.messages[1].parts
    document = json.loads(part.text)
    assert document["call"]["tool"] == "probe"
    assert document["messages"] == [{"role": "user", "text": "x" * 2_000}]
    assert "secret" not in part.text


@pytest.mark.contract("TOL-11")
async def test_without_an_answer_within_30_seconds_the_user_is_asked(
    tmp_path, mock_clock
):
    provider, reviews = model([Hang()])
    probe = Probe(permission="do it")
    async with open_stage(
        tmp_path, [], probe, provider=provider, permission_mode="auto_approve"
    ) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            assert len(reviews) == 1
            mock_clock.jump(29.9)
            await wait_all_tasks_blocked()
            assert await stage.session.interactions() == ()
            mock_clock.jump(0.2)
            await wait_all_tasks_blocked()
            (asked,) = await stage.session.interactions()
            await stage.session.answer(asked.id, Grant())
        assert probe.calls == [{"n": 1}]
