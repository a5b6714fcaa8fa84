"""Requests that are too large: what is sent instead, and how the turn ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings, strategies as st
from kit.attempts import attempts_of
from kit.rehearsal import Probe, open_stage, replies
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.providers import (
    Call,
    Fail,
    Halt,
    Hang,
    RehearsalProvider,
    Say,
    Use,
)
from greenroom.protocol import ToolMessage, UserMessage
from greenroom.testing import open_test_engine

DONE = [Say("done"), Halt()]
BUSY = [Fail("overloaded", status=503)]
TOO_LONG = [Fail("prompt is too long", status=400)]
SUMMARY = [Say("## Goal\nkeep the door shut"), Halt()]
LONG = "word " * 400
BIG = "x" * 9_000


def ask(number: int) -> list[Any]:
    return [Call("probe", {"n": number}), Halt("tool_use")]


def said(number: int) -> list[Any]:
    return [Say(f"answer {number} {LONG}"), Halt()]


def sends(stage: Any) -> list[tuple[int, int, int, str]]:
    return [
        (a["logicalRound"], a["requestSeq"], a["physicalAttempt"], a["requestOrigin"])
        for a in attempts_of(stage)
    ]


def anchors(stage: Any) -> list[tuple[str, dict[str, Any]]]:
    return [
        (entry.fact.name, json.loads(entry.fact.payload))
        for entry in stage.tape()
        if entry.fact.name.startswith(("compaction/", "summary/"))
        and entry.fact.kind == "anchor"
    ]


def texts(request: Any) -> list[str]:
    """What the messages of a request say, the instructions left out."""
    shown: list[str] = []
    for message in request.messages[0:]:
        if isinstance(message, UserMessage):
            parts: Any = message.parts
            shown.append(" ".join(part.text for part in parts))
        else:
            shown.append(message.text)
    return shown


def folder(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.mkdir()
    return path


async def talk(stage: Any, turns: int) -> None:
    for number in range(turns):
        await stage.session.prompt(f"ask {number} {LONG}")


#### Results of tools


@pytest.mark.contract("CTX-16")
async def test_an_overflow_after_an_effect_shortens_its_result_and_replays_nothing(
    tmp_path, autojump_clock: MockClock
):
    probe = Probe(result=BIG)
    script = replies(ask(1), TOO_LONG, BUSY, BUSY, DONE)
    async with open_stage(tmp_path, script, probe, max_rounds=2) as stage:
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.text) == ("completed", "done")
        assert len(probe.calls) == 1
        assert sends(stage) == [
            (1, 1, 1, "chat"),
            (2, 2, 1, "tool_loop"),
            (2, 3, 1, "context_recovery"),
            (2, 3, 2, "context_recovery"),
            (2, 3, 3, "context_recovery"),
        ]
        asked = [
            m
            for m in stage.provider.requests[-1].messages
            if isinstance(m, UserMessage)
        ]
        assert len(asked) == 1
        roles = [m.role for m in await stage.session.messages()]
        assert roles == ["user", "assistant"]
        assert turn.message.metadata.provider_rounds == 2
        manifests = [
            json.loads(e.fact.payload)["manifest"]["requestSeq"]
            for e in stage.tape()
            if e.fact.name == "view/assembled"
        ]
        assert manifests == [1, 2, 3]
        assert anchors(stage) == []


@pytest.mark.contract("CTX-31")
async def test_older_results_are_shortened_first_and_stay_short_in_later_rounds(
    tmp_path,
):
    script = replies(ask(1), ask(2), TOO_LONG, ask(3), DONE)
    async with open_stage(tmp_path, script, Probe(result=BIG)) as stage:
        turn = await stage.session.prompt("go")
        assert turn.text == "done"
        sizes = [
            [len(m.text) for m in r.messages if isinstance(m, ToolMessage)]
            for r in stage.provider.requests
        ]
        assert sizes[2] == [9_000, 9_000]
        assert sizes[3][0] < 9_000 == sizes[3][1]
        assert sizes[4] == [*sizes[3], 9_000]
        blocks: Any = turn.message.blocks
        assert [len(b.response) for b in blocks if hasattr(b, "response")] == [
            9_000
        ] * 3


#### The history


@pytest.mark.contract("CTX-15", "CTX-20", "CTX-21")
async def test_an_overflow_compacts_the_history_and_the_tape_keeps_it(tmp_path):
    script = replies(said(0), said(1), said(2), TOO_LONG, SUMMARY, DONE)
    async with open_stage(tmp_path, script, system_prompt="rules") as stage:
        await talk(stage, 3)
        before = stage.tape()
        turn = await stage.session.prompt("now")
        assert turn.text == "done"
        assert stage.tape()[: len(before)] == before
        ((name, state),) = anchors(stage)
        assert name == "compaction/context_pressure"
        assert state["summary"] == "## Goal\nkeep the door shut"
        assert state["cursorOrderSeq"] > 1
        summarised, sent = stage.provider.requests[-2:]
        assert summarised.tools == ()
        shown = texts(sent)
        assert shown[0] == "rules"
        assert shown[1].startswith("ask 0")
        assert "keep the door shut" in shown[2]
        assert shown[-1] == "now"
        assert not any(text.startswith("answer 0") for text in shown)
        assert len(await stage.session.messages()) == 8


@pytest.mark.contract("CTX-14")
async def test_three_sequences_recover_and_a_fourth_does_not(tmp_path):
    rounds = [each for n in range(4) for each in (ask(n), TOO_LONG)]
    script = replies(*rounds, DONE)
    async with open_stage(tmp_path, script, Probe(result=BIG)) as stage:
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.stop_reason) == ("error", "context_window")
        recovered = [s for s in sends(stage) if s[3] == "context_recovery"]
        assert len(recovered) == 3


@pytest.mark.contract("CTX-14")
async def test_another_overflow_before_an_answer_joins_its_sequence(tmp_path):
    again = [ask(3), TOO_LONG, ask(4), TOO_LONG]
    rounds = [ask(1), ask(2), TOO_LONG, TOO_LONG, *again, DONE]
    async with open_stage(tmp_path, replies(*rounds), Probe(result=BIG)) as stage:
        turn = await stage.session.prompt("go")
        # The first sequence has two payloads: older results, then the newest one.
        assert turn.text == "done"
        recovered = [s for s in sends(stage) if s[3] == "context_recovery"]
        assert len(recovered) == 4


#### How it ends


@pytest.mark.contract("CTX-15")
@pytest.mark.parametrize(
    ("answer", "rounds", "code"),
    [
        ("short", [ask(1), TOO_LONG], "retry_projection_unchanged"),
        (BIG, [ask(1), TOO_LONG, TOO_LONG], "provider_rejected_retry"),
        (
            BIG,
            [
                ask(1),
                [Fail("prompt is too long: 90000 tokens > 600 maximum", status=400)],
            ],
            "retry_projection_cannot_fit",
        ),
    ],
)
async def test_a_sequence_that_can_do_no_more_ends_with_its_error(
    tmp_path, answer, rounds, code
):
    async with open_stage(tmp_path, replies(*rounds), Probe(result=answer)) as stage:
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.stop_reason) == ("error", "context_window")
        assert turn.message.metadata.error_code == code
        assert len(stage.provider.requests) == len(rounds)


@pytest.mark.contract("CTX-17")
async def test_a_strict_retry_lowers_the_output_once(tmp_path):
    refused = [
        Fail(
            "This model's maximum context length is 20000 tokens. You requested"
            " 20500 tokens (4500 in the messages, 16000 in the completion).",
            status=400,
        )
    ]
    async with open_stage(tmp_path, replies(refused, DONE)) as stage:
        await stage.session.configure(max_output_tokens=16_000)
        turn = await stage.session.prompt("go")
        assert turn.text == "done"
        first, second = stage.provider.requests
        assert first.messages == second.messages
        assert (first.max_output_tokens, second.max_output_tokens) == (16_000, 8_000)
    async with open_stage(
        folder(tmp_path, "again"), replies(refused, refused, DONE)
    ) as stage:
        await stage.session.configure(max_output_tokens=16_000)
        turn = await stage.session.prompt("go")
        assert turn.message.metadata.error_code == "provider_rejected_retry"
        assert len(stage.provider.requests) == 2


@pytest.mark.contract("CTX-22", "CTX-29")
async def test_without_a_summary_the_boundary_moves_and_the_turn_goes_on(
    tmp_path, autojump_clock: MockClock
):
    cut = [Say("## Go"), Halt("max_tokens")]
    script = replies(said(0), said(1), said(2), TOO_LONG, cut, cut, DONE, SUMMARY)
    async with open_stage(tmp_path, script) as stage:
        await talk(stage, 3)
        began = trio.current_time()
        turn = await stage.session.prompt("now")
        assert turn.text == "done"
        assert trio.current_time() - began < 120
        ((_, state),) = anchors(stage)
        assert state["reason"] == "summary_unavailable"
        assert state["gaps"] == [[1, state["cursorOrderSeq"] - 1]]
        done = await stage.session.compact()
        assert done.outcome == "summarized"
        asked: Any = stage.provider.requests[-1].messages[1]
        assert "ask 0" in asked.parts[0].text
        assert "gaps" not in anchors(stage)[-1][1]


@pytest.mark.contract("CTX-24")
async def test_a_cancel_while_a_run_compacts_commits_nothing(
    tmp_path, autojump_clock: MockClock
):
    script = replies(said(0), said(1), said(2), TOO_LONG, [Use(9, 1), Hang()])
    async with open_stage(tmp_path, script) as stage:
        await talk(stage, 3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "now")
            while len(stage.provider.requests) < 5:
                await wait_all_tasks_blocked()
            await stage.session.cancel()
        assert anchors(stage) == []
        calls = [e for e in stage.tape() if e.fact.name.startswith("compaction/model")]
        payload = json.loads(calls[0].fact.payload)
        assert (payload["status"], payload["usage"]["input"]) == ("aborted", 9)
        newest = (await stage.session.messages())[-1]
        assert newest.metadata.run_stop_reason == "user_stop"


#### Before anything is refused


@pytest.mark.contract("CTX-19")
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ([Say("ok"), Use(9_001, 5), Halt()], "successful_prompt_overflow"),
        ([Use(8_990, 0), Halt("max_tokens")], "zero_output_length_at_limit"),
    ],
)
@pytest.mark.parametrize("reopened", [False, True])
async def test_silent_pressure_compacts_before_the_next_turn_and_only_then(
    tmp_path, reply, kind, reopened
):
    script = replies(said(0), reply, SUMMARY, DONE, DONE)
    async with open_stage(tmp_path, script) as stage:
        await stage.session.configure(context_length=9_000)
        await talk(stage, 2)
        assert attempts_of(stage)[-1]["contextPressure"]["kind"] == kind
        assert anchors(stage) == []
        if reopened:
            await stage.session.close()
        assert (await stage.session.prompt("next")).text == "done"
        assert [name for name, _ in anchors(stage)] == ["compaction/context_pressure"]
        assert (await stage.session.prompt("once more")).text == "done"
        assert len(anchors(stage)) == 1


def projected(stage: Any) -> int:
    """The estimate of the newest request, as its manifest has it."""
    entries = [e for e in stage.tape() if e.fact.name == "view/assembled"]
    manifest = json.loads(entries[-1].fact.payload)["manifest"]
    return manifest["tokenBudget"]["estimatedPromptTokens"]


@pytest.mark.contract("CTX-25")
@pytest.mark.parametrize(("above", "names"), [(0, []), (1, ["compaction/auto"])])
async def test_a_turn_is_preceded_by_a_compaction_above_the_bound_and_not_at_it(
    tmp_path, above, names
):
    talked = [said(n) for n in range(4)]
    async with open_stage(folder(tmp_path, "measure"), replies(*talked, DONE)) as stage:
        await talk(stage, 4)
        await stage.session.prompt("next")
        tokens = projected(stage)
    script = replies(*talked, *[SUMMARY] * above, DONE)
    async with open_stage(folder(tmp_path, "measured"), script) as stage:
        await talk(stage, 4)
        # 80 per cent of what the answer leaves, less a fifth: the bound is what it is.
        room = next(r for r in range(9_999) if r * 80 // 120 == tokens)
        context = room + 1_000 - 2 * above
        await stage.session.configure(context_length=context, max_output_tokens=1_000)
        assert (await stage.session.prompt("next")).text == "done"
        assert [name for name, _ in anchors(stage)] == names
        assert all(state["cursorOrderSeq"] == 5 for _, state in anchors(stage))
        assert sends(stage)[-1] == (1, 1, 1, "chat")


#### Every way in which a provider says it

BODIES = [
    (
        400,
        (
            "This model's maximum context length is 9000 tokens. However, your messages"
            " resulted in 9100 tokens. Please reduce the length of the messages."
        ),
    ),
    (400, "request (9100 tokens) exceeds the available context size (9000 tokens)"),
    (400, "prompt is too long: 9100 tokens > 9000 maximum"),
    (
        400,
        (
            "The input token count (9100) exceeds the maximum number of tokens allowed"
            " (9000)."
        ),
    ),
    (
        400,
        (
            "This model's maximum prompt length is 9000 but the request contains 9100"
            " tokens."
        ),
    ),
    (400, "prompt tokens (9100) exceed model maximum (9000)"),
    (413, "request entity too large"),
    (500, "prompt too long; exceeded max context length by 100 tokens"),
    (None, "Input is too long for requested model."),
    (422, "The prompt is longer than the model's context length"),
]


@pytest.mark.parametrize(("status", "text"), BODIES)
async def test_each_wording_of_an_overflow_leads_to_a_smaller_request(
    tmp_path, status, text
):
    refused = [Fail(text, status=status)]
    script = replies(said(0), said(1), said(2), refused, SUMMARY, DONE)
    async with open_stage(tmp_path, script) as stage:
        await talk(stage, 3)
        turn = await stage.session.prompt("now")
        assert turn.text == "done"
        assert [name for name, _ in anchors(stage)] == ["compaction/context_pressure"]
        assert sends(stage)[-1][3] == "context_recovery"


#### Whatever comes

moves = st.sampled_from(
    [
        ("talk", 0),
        ("talk", 1),
        ("work", 0),
        ("work", 1),
        ("refuse", 0),
        ("refuse", 1),
        ("summary", 0),
        ("nothing", 0),
    ]
)


@settings(max_examples=30, deadline=None)
@given(st.lists(moves, max_size=14), st.sampled_from([None, 3_000, 20_000]))
def test_whatever_pressure_there_is_turns_end_and_requests_stay_whole(script, window):
    trio.run(play, script, window, clock=MockClock(autojump_threshold=0))


async def play(script: list[tuple[str, int]], window: int | None) -> None:
    cues = {
        "talk": [said(0), [Say("yes"), Halt()]],
        "work": [ask(1), [*ask(2)[:1], *ask(3)]],
        "refuse": [TOO_LONG, [Fail("90000 tokens > 2000 maximum", status=400)]],
        "summary": [SUMMARY],
        "nothing": [[Halt()]],
    }
    rounds = [cues[name][which] for name, which in script]
    provider = RehearsalProvider([*rounds, *[DONE] * 40])
    async with open_test_engine(None, provider, Probe(result=BIG)) as engine:
        session = await engine.create_session(
            workspace="/", system_prompt="rules", max_rounds=6
        )
        await session.configure(context_length=window)
        for number in range(4):
            await session.prompt(f"ask {number} {LONG}")
        turns = [r for r in provider.requests if r.tool_choice != "none"]
        for request in turns:
            check_whole(request)
        if len(script) < 6 and window is None:
            assert (await session.prompt("last")).outcome == "completed"


def check_whole(request: Any) -> None:
    shown = texts(request)
    assert shown[0] == "rules"
    assert shown[1].startswith("ask 0")
    users = [m for m in request.messages if isinstance(m, UserMessage)]
    assert texts_of_user(users[-1]).startswith("ask") or "last" in str(users[-1])
    calls = [c.id for m in request.messages for c in getattr(m, "calls", ())]
    results = [m.call_id for m in request.messages if isinstance(m, ToolMessage)]
    assert calls == results


def texts_of_user(message: UserMessage) -> str:
    parts: Any = message.parts
    return parts[-1].text
