"""What a resumed turn sends: legal for the strictest provider, nothing lost."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio
from kit.laws import request_problems
from kit.rehearsal import Probe, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, RehearsalProvider, Say, Think
from greenroom.engine import Deny, Grant
from greenroom.protocol import (
    AssistantMessage,
    ModelRequest,
    ProviderFailure,
    ToolCallEnd,
    ToolMessage,
)

SIGNED = {"signature": "s1", "encrypted": [1, 2, 3]}
OF_CALL = {"thought_signature": "s2", "nested": {"n": [1]}}
THINKS = [
    Think("first I look", options=SIGNED),
    Say("I look."),
    Call("probe", {"n": 1}),
    Call("probe", {"n": 2}),
    Halt("tool_use"),
]
DONE = [Say("done"), Halt()]


@attrs.define(eq=False)
class StrictProvider:
    """Refuses a request that is not paired, or that lacks what it sent itself."""

    inner: RehearsalProvider
    resumes: bool
    refused: list[str] = attrs.field(factory=list)
    id: str = "strict"
    replayable: bool = True
    max_told_ms: int = 60_000

    @property
    def requests(self):
        return self.inner.requests

    @asynccontextmanager
    async def stream(self, request: ModelRequest, **rest: Any):
        problems = list(request_problems(request))
        if self.resumes or self.inner.requests:
            problems += _missing(request)
        self.refused += problems
        if problems:
            yield _failing(problems)
            return
        async with self.inner.stream(request, **rest) as events:
            yield _signed(events)


async def _signed(events):
    async for event in events:
        if isinstance(event, ToolCallEnd):
            event = msgspec.structs.replace(event, options=OF_CALL | {"of": event.id})
        yield event


async def _failing(problems):
    yield ProviderFailure(message="; ".join(problems), code="invalid_request")


def _missing(request: ModelRequest) -> list[str]:
    said = [m for m in request.messages if isinstance(m, AssistantMessage)]
    results = [m for m in request.messages if isinstance(m, ToolMessage)]
    if not said:
        return ["what the model said is missing"]
    problems = []
    if [(r.text, r.options) for r in said[0].reasoning] != [("first I look", SIGNED)]:
        problems.append("the reasoning is not as it was sent")
    if [call.id for call in said[0].calls] != [result.call_id for result in results]:
        problems.append("the results are not those of the calls")
    if [call.options for call in said[0].calls] != [
        OF_CALL | {"of": call.id} for call in said[0].calls
    ]:
        problems.append("the calls are not as they were sent")
    return problems


@pytest.mark.contract("INT-07")
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_strict_provider_takes_the_request_that_follows_a_pause(
    tmp_path, restarted
):
    probe = Probe(permission="?")
    script = [THINKS] if restarted else [THINKS, DONE]
    provider = StrictProvider(RehearsalProvider(replies(*script)), resumes=False)
    async with open_stage(tmp_path, [], probe, provider=provider) as stage:
        session_id = stage.session.id
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            if restarted:
                nursery.cancel_scope.cancel()
            else:
                await answer_both(stage)
    if restarted:
        provider = StrictProvider(RehearsalProvider(replies(DONE)), resumes=True)
        async with open_stage(
            tmp_path, [], probe, provider=provider, session_id=session_id
        ) as stage:
            await answer_both(stage)
            await wait_all_tasks_blocked()
            assert (await stage.session.messages())[1].status == "sent"
    assert provider.refused == []
    results = [m for m in provider.requests[-1].messages if isinstance(m, ToolMessage)]
    assert [result.is_error for result in results] == [False, True]


async def answer_both(stage):
    for answer in (Grant(), Deny("not that one")):
        asked, *_ = await stage.session.interactions()
        await stage.session.answer(asked.id, answer)
        await wait_all_tasks_blocked()
