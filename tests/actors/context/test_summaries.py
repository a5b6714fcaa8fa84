"""The strategy that asks a model, bounded on every side."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from kit.compacting import SETTINGS, history
from trio.testing import MockClock

from greenroom.actors.context import (
    CondenseJob,
    ModelCall,
    SlidingWindow,
    Summaries,
    SummaryModel,
)
from greenroom.actors.providers import (
    Call,
    Fail,
    Halt,
    Hang,
    Raise,
    RehearsalProvider,
    Say,
    Use,
)

GOOD = [Say("## Goal\nship it"), Use(100, 20), Halt()]
CUT = [Say("## Goal\nsh"), Use(100, 512), Halt("max_tokens")]
OVERFLOW = [Fail("prompt is too long: 20 tokens > 10 maximum", status=400)]
CALLS = [Call("read", {}), Halt("tool_use")]


def texts_sent(provider: RehearsalProvider) -> list[str]:
    """The documents that the provider was sent."""
    messages: list[Any] = [request.messages[1] for request in provider.requests]
    return [message.parts[0].text for message in messages]


def job(provider: Any, *, window: int | None = 100_000, **changes: Any):
    calls: list[ModelCall] = []
    given: dict[str, Any] = {
        "trigger": "auto",
        "settings": SETTINGS,
        "records": history(("build the thing", "it is built")),
        "prior": "",
        "focus": "",
        "models": [SummaryModel(provider, "m", window)],
        "note": calls.append,
    }
    return CondenseJob(**(given | changes)), calls


def summaries(**changes: Any) -> Summaries:
    return Summaries(lambda: 0.0, lambda: 0.0, **changes)


async def test_the_summary_is_the_text_of_the_answer():
    provider = RehearsalProvider([GOOD])
    asked, calls = job(provider, prior="before", focus="the door")
    condensed = await summaries().condense(asked)
    assert (condensed.text, condensed.fault) == ("## Goal\nship it", None)
    sent = json.loads(texts_sent(provider)[0])
    assert (sent["summary"], sent["focus"]) == ("before", "the door")
    assert [(c.status, c.usage.input if c.usage else 0) for c in calls] == [
        ("completed", 100)
    ]


async def test_what_can_be_no_number_of_tokens_is_not_known():
    asked, calls = job(RehearsalProvider([[GOOD[0], Use(-100, 20), Halt()]]))
    await summaries().condense(asked)
    assert [(call.status, call.usage) for call in calls] == [("completed", None)]


@pytest.mark.contract("CTX-27")
async def test_the_assistant_model_is_asked_if_the_conversation_fits_it_else_the_chat():
    small, large = RehearsalProvider([GOOD]), RehearsalProvider([GOOD])
    models = [SummaryModel(small, "s", 6_000), SummaryModel(large, "l", 200_000)]
    short, _ = job(small, models=models)
    await summaries().condense(short)
    long, _ = job(
        small, models=models, records=history(("word " * 2_000, "word " * 2_000))
    )
    await summaries().condense(long)
    assert [r.model for r in small.requests] == ["s"]
    assert [r.model for r in large.requests] == ["l"]


@pytest.mark.contract("CTX-27")
async def test_a_long_conversation_is_asked_about_in_chunks_with_the_summary_so_far():
    parts = [[Say(f"part {n}"), Halt()] for n in range(12)]
    provider = RehearsalProvider(parts)
    turns = history(*[("word " * 1_500, "word " * 1_500)] * 3)
    asked, calls = job(provider, window=9_000, records=turns)
    condensed = await summaries().condense(asked)
    count = len(provider.requests)
    assert count > 1
    assert condensed.text == f"part {count - 1}"
    priors = [json.loads(text)["summary"] for text in texts_sent(provider)]
    assert priors == ["", *[f"part {n}" for n in range(count - 1)]]
    assert len(calls) == count


@pytest.mark.contract("CTX-29")
async def test_a_summariser_that_always_hits_its_cap_is_asked_twice():
    provider = RehearsalProvider([CUT] * 5)
    asked, calls = job(provider)
    condensed = await summaries().condense(asked)
    assert condensed.fault == "unavailable"
    assert len(provider.requests) == len(calls) == 2
    assert {call.stop_reason for call in calls} == {"max_tokens"}


async def test_a_chunk_after_a_cut_summary_is_smaller():
    provider = RehearsalProvider([CUT, GOOD, GOOD, GOOD, GOOD])
    turns = history(*[("word " * 1_500, "word " * 1_500)] * 2)
    asked, _ = job(provider, window=12_000, records=turns)
    assert (await summaries().condense(asked)).text == "## Goal\nship it"
    sizes = [len(text) for text in texts_sent(provider)]
    assert sizes[1] < sizes[0]


async def test_a_summariser_that_overflows_is_asked_with_three_sizes_at_most():
    provider = RehearsalProvider([OVERFLOW] * 5)
    asked, _ = job(provider)
    assert (await summaries().condense(asked)).fault == "unavailable"
    assert len(provider.requests) == 3
    provider = RehearsalProvider([OVERFLOW, OVERFLOW, GOOD])
    asked, _ = job(provider)
    assert (await summaries().condense(asked)).fault is None


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (CALLS, "rejected"),
        ([Say("text too"), *CALLS], "rejected"),
        ([Say(" \n"), Halt()], "rejected"),
        ([Halt()], "rejected"),
        ([Say("x" * 70_000), Hang()], "rejected"),
        ([Fail("bad key", status=401)], "unavailable"),
        ([Raise("boom")], "unavailable"),
        ([], "unavailable"),
    ],
)
async def test_what_is_no_summary_is_none(reply, fault, autojump_clock: MockClock):
    provider = RehearsalProvider([reply] * 3)
    asked, calls = job(provider)
    condensed = await summaries().condense(asked)
    assert (condensed.text, condensed.fault) == ("", fault)
    assert condensed.why
    assert len(calls) == len(provider.requests)


async def test_a_history_that_would_take_too_many_requests_gets_no_summary():
    provider = RehearsalProvider([GOOD])
    turns = history(*[("word " * 1_500, "word " * 1_500)] * 30)
    asked, _ = job(provider, window=4_096, records=turns)
    assert (await summaries().condense(asked)).fault == "unavailable"
    assert provider.requests == []


@pytest.mark.contract("CTX-29")
async def test_all_of_it_ends_within_120_seconds(autojump_clock: MockClock):
    provider = RehearsalProvider([[Say("so far"), Hang()]])
    asked, calls = job(provider)
    before = trio.current_time()
    assert (await summaries().condense(asked)).fault == "unavailable"
    assert trio.current_time() - before == 120.0
    assert [call.status for call in calls] == ["aborted"]


async def test_without_a_model_there_is_no_summary():
    asked, _ = job(None, models=[])
    assert (await summaries().condense(asked)).fault == "unavailable"


async def test_a_sliding_window_tells_what_was_asked_without_a_model():
    asked, calls = job(None, models=[], prior="- user: long ago")
    condensed = await SlidingWindow().condense(asked)
    assert condensed.text.splitlines() == [
        "- user: long ago",
        "- user: build the thing",
        "- assistant: it is built",
    ]
    assert calls == []


async def test_a_sliding_window_is_bounded_and_forgets_the_oldest():
    turns = history(*[(f"turn {n} {'x' * 300}", "done") for n in range(200)])
    asked, _ = job(None, models=[], records=turns)
    text = (await SlidingWindow().condense(asked)).text
    assert len(text) <= 6_000
    assert "turn 199" in text
    assert "turn 0 " not in text
