"""Plan, condense, judge, commit: what a compaction leaves behind."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
import trio
from kit.compacting import SETTINGS, MemoryTape, compactor, history
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.context import (
    CompactionWork,
    Condensed,
    CondenseJob,
    ModelCall,
    SlidingWindow,
)
from greenroom.protocol import Usage
from greenroom.protocol.context import (
    Boundary,
    Reconstruction,
    checkpoint_tokens,
)

LONG = "word " * 400
TURNS = [(f"ask {n} {LONG}", f"answer {n} {LONG}") for n in range(6)]


@attrs.define(eq=False)
class Scripted:
    """A strategy that answers as told."""

    answer: Condensed
    jobs: list[CondenseJob] = attrs.field(factory=list)
    gate: trio.Event | None = None

    async def condense(self, job: CondenseJob) -> Condensed:
        self.jobs.append(job)
        job.note(ModelCall("p", "m", "completed", Usage(input=9, output=1, total=10)))
        await trio.lowlevel.checkpoint()
        if self.gate is not None:
            await self.gate.wait()
        return self.answer


def work(turns: Any = None, **changes: Any) -> CompactionWork:
    given: dict[str, Any] = {
        "trigger": "auto",
        "settings": SETTINGS,
        "records": history(*(turns or TURNS)),
        "boundary": None,
        "pairs_kept": 2,
        "input_budget": 0,
    }
    return CompactionWork(**(given | changes))


def anchors(tape: MemoryTape) -> list[tuple[str, dict[str, Any]]]:
    found = [f for f in tape.facts if f.kind == "anchor"]
    return [(fact.name, json.loads(fact.payload)) for fact in found]


@pytest.mark.contract("CTX-28")
async def test_a_summary_and_its_boundary_are_one_anchor():
    tape, strategy = MemoryTape(), Scripted(Condensed("the story so far"))
    done = await compactor(tape, strategy).compact(work())
    assert done.outcome == "summarized"
    ((name, state),) = anchors(tape)
    assert name == "compaction/auto"
    assert state == {
        "cursorOrderSeq": 9,
        "summary": "the story so far",
        "attemptId": "id-0",
        "summaryUpdatedAt": 7.0,
        "throughOrderSeq": 12,
        "tokensBefore": done.before,
        "tokensAfter": done.after,
    }
    assert [r.order_seq for r in strategy.jobs[0].records] == list(range(1, 9))
    assert done.after < done.before


@pytest.mark.contract("CTX-28")
async def test_a_boundary_that_moved_meanwhile_is_left_alone():
    tape, gate = MemoryTape(entry=4), trio.Event()
    strategy = Scripted(Condensed("short"), gate=gate)
    begun = Boundary("compaction/auto", 4, Reconstruction(cursor_order_seq=3))
    done: list[Any] = []

    async def compact() -> None:
        done.append(await compactor(tape, strategy).compact(work(boundary=begun)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(compact)
        await wait_all_tasks_blocked()
        tape.entry = 5
        gate.set()
    assert done[0].outcome == "unchanged"
    assert anchors(tape) == []


@pytest.mark.contract("CTX-23")
@pytest.mark.parametrize(
    ("pinned", "outcome"), [(True, "unchanged"), (False, "summarized")]
)
async def test_the_pinned_message_is_not_counted_as_hidden(pinned, outcome):
    # The text is larger than the answer that is hidden, and smaller with the question.
    records = history((LONG * 4, "yes"), ("next", "no"))
    asked = work(records=records, pinned=records[0] if pinned else None, pairs_kept=1)
    done = await compactor(MemoryTape(), Scripted(Condensed(LONG))).compact(asked)
    assert done.outcome == outcome


@pytest.mark.parametrize("trigger", ["auto", "resume", "manual"])
@pytest.mark.parametrize(
    "answer",
    [
        Condensed(LONG * 50),
        Condensed(""),
        Condensed(fault="rejected", why="the model called a tool"),
    ],
)
async def test_an_empty_larger_or_tool_calling_summary_removes_nothing(trigger, answer):
    tape = MemoryTape()
    done = await compactor(tape, Scripted(answer)).compact(work(trigger=trigger))
    assert done.outcome == "unchanged"
    assert done.why
    assert anchors(tape) == []


@pytest.mark.contract("CTX-22")
@pytest.mark.parametrize("trigger", ["auto", "resume", "context_pressure"])
async def test_without_a_summariser_the_boundary_moves_and_the_gap_is_known(trigger):
    tape = MemoryTape()
    strategy = Scripted(Condensed(fault="unavailable", why="nobody answers"))
    done = await compactor(tape, strategy).compact(work(trigger=trigger))
    assert (done.outcome, done.why) == ("boundary_only", "nobody answers")
    ((name, state),) = anchors(tape)
    assert name == f"compaction/{trigger}"
    assert state["reason"] == "summary_unavailable"
    assert state["gaps"] == [[1, state["cursorOrderSeq"] - 1]]
    assert "summary" not in state
    assert "summaryUpdatedAt" not in state


@pytest.mark.contract("CTX-22")
async def test_under_pressure_a_larger_summary_leaves_a_boundary_with_its_reason():
    tape = MemoryTape()
    done = await compactor(tape, Scripted(Condensed(LONG * 50))).compact(
        work(trigger="context_pressure")
    )
    assert done.outcome == "boundary_only"
    ((_, state),) = anchors(tape)
    assert state["reason"] == "summary_rejected_larger"


@pytest.mark.contract("CTX-22")
async def test_a_gap_joins_the_next_one_and_is_told_in_the_end():
    prior = Reconstruction(cursor_order_seq=5, summary="long ago", gaps=((3, 4),))
    begun = Boundary("compaction/auto", 3, prior)
    tape = MemoryTape(entry=3)
    failing = Scripted(Condensed(fault="unavailable", why="no"))
    await compactor(tape, failing).compact(work(boundary=begun))
    ((_, state),) = anchors(tape)
    assert (state["gaps"], state["summary"]) == ([[3, 8]], "long ago")
    again = Boundary(
        "compaction/auto",
        3,
        Reconstruction(cursor_order_seq=9, summary="long ago", gaps=((3, 8),)),
    )
    good = Scripted(Condensed("all of it"))
    done = await compactor(tape, good).compact(work(boundary=again, trigger="manual"))
    assert done.state is not None
    assert (done.state.gaps, done.state.summary) == ((), "all of it")
    assert [r.order_seq for r in good.jobs[0].records] == list(range(3, 13))
    assert good.jobs[0].prior == "long ago"


@pytest.mark.contract("CTX-25")
@pytest.mark.parametrize(
    ("trigger", "cursor"), [("auto", 9), ("resume", 7), ("manual", 13)]
)
async def test_each_trigger_keeps_its_own_tail(trigger, cursor):
    done = await compactor(MemoryTape(), Scripted(Condensed("s"))).compact(
        work(trigger=trigger)
    )
    assert done.state is not None
    assert done.state.cursor_order_seq == cursor


@pytest.mark.contract("CTX-24")
async def test_a_cancelled_compaction_leaves_only_the_requests_it_made():
    tape, strategy = MemoryTape(), Scripted(Condensed("s"), gate=trio.Event())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(compactor(tape, strategy).compact, work())
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [f.name for f in tape.facts] == ["compaction/model_call_completed"]
    payload = json.loads(tape.facts[0].payload)
    assert payload["compactionAttemptId"] == "id-0"
    assert payload["usage"]["input"] == 9


@pytest.mark.contract("CTX-24")
async def test_a_compaction_that_is_cancelled_before_its_commit_writes_no_anchor():
    tape = MemoryTape(gate=lambda what: trio.Event().wait())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(compactor(tape, Scripted(Condensed("s"))).compact, work())
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert anchors(tape) == []


@pytest.mark.contract("CTX-24")
async def test_each_try_has_an_id_of_its_own():
    tape = MemoryTape()
    made = compactor(tape, Scripted(Condensed(fault="rejected", why="no")))
    await made.compact(work())
    await made.compact(work())
    ids = {json.loads(f.payload)["compactionAttemptId"] for f in tape.facts}
    assert len(ids) == len(tape.facts) == 2


async def test_a_strategy_that_raises_counts_as_none(caplog):
    class Broken:
        async def condense(self, job: CondenseJob) -> Condensed:
            await trio.lowlevel.checkpoint()
            raise ValueError("boom")

    done = await compactor(MemoryTape(), Broken()).compact(work())
    assert done.outcome == "boundary_only"
    assert "boom" in done.why


async def test_five_compactions_do_not_grow_the_checkpoint():
    boundary, sizes = None, []
    turns = list(TURNS)
    for n in range(5):
        tape = MemoryTape(entry=boundary and boundary.entry)
        asked = work(turns=turns, boundary=boundary, trigger="manual")
        done = await compactor(tape, SlidingWindow()).compact(asked)
        assert done.state is not None
        boundary = Boundary("compaction/manual", n + 1, done.state)
        sizes.append(checkpoint_tokens(boundary.name, boundary.state))
        turns += TURNS
    assert max(sizes) < 3_000
