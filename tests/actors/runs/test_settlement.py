from __future__ import annotations

import uuid

import attrs
import pytest
import trio
from kit.rehearsal import Probe, open_stage, replies, spy_on
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.backend import ActiveRun, RunPorts
from greenroom.actors.kernel import CancelCause
from greenroom.actors.providers import Call, End, Fail, Halt, Hang, Say
from greenroom.actors.runs._life import Run
from greenroom.actors.tools import ToolResult
from greenroom.protocol import (
    Diff,
    Draft,
    Fault,
    MessagesChanged,
    RunId,
    RunStarted,
    RunTerminal,
    StreamCompleted,
    StreamFailed,
    Terminal,
    TextBlock,
    TextDelta,
)

DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]

ENDINGS = {
    "complete": [[Say("a"), Halt()]],
    "max_tokens": [[Say("a"), Halt("max_tokens")]],
    "max_turn_requests": [[Say("a"), Halt("max_turn_requests")]],
    "provider_error": [[Say("a"), Fail("boom")]],
    "no stop": [[Say("a"), End()]],
    "context_window": [[Fail("maximum context length is 10 tokens", status=400)]],
    "empty_response": [[Halt()]],
    "tool_use without call": [[Say("a"), Halt("tool_use")]],
    "max_turns": [ASK, ASK],
    "interaction": [[Call("asking"), Halt("tool_use")]],
    "user_stop": [[Say("a"), Hang()]],
}


@pytest.mark.contract("RUN-23")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_every_ending_stamps_commits_finalises_and_then_tells(tmp_path, ending):
    tools = Probe(), Probe(name="asking", permission="?")
    rounds = replies(*ENDINGS[ending])
    limit = 1 if ending == "max_turns" else None
    async with open_stage(
        tmp_path, rounds, *tools, max_rounds=limit, replayable=False
    ) as stage:
        trace = traced(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            if ending == "user_stop":
                await stage.session.cancel()
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert_settled_in_order(trace)


ALL_TERMINALS = [
    Terminal("completed", "complete", "sent"),
    Terminal("completed", "max_tool_calls", "sent"),
    Terminal("completed", "pending_input", "sent"),
    Terminal("completed", "user_follow_up", "sent"),
    Terminal("paused", "interaction", "pending"),
    Terminal("error", "no_progress", "error", Fault("no_progress", "x")),
    Terminal("error", "tool_error", "error", Fault("tool_error", "x")),
    Terminal("error", "pre_stream_error", "error", Fault("pre_stream_error", "x")),
    Terminal("error", "deadline", "error", Fault("deadline", "x")),
    Terminal("aborted", "shutdown", "error", Fault("session_interrupted", "x")),
    Terminal("aborted", "superseded", "error", Fault("superseded", "x")),
]


@pytest.mark.contract("RUN-23")
@pytest.mark.parametrize("terminal", ALL_TERMINALS, ids=lambda t: t.stop_reason)
async def test_endings_that_no_script_leads_to_settle_in_the_same_order(
    tmp_path, terminal
):
    async with open_stage(tmp_path, replies([Hang()])) as stage:
        trace = traced(stage)
        loaded = stage.session._sessions.loaded(stage.session.id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            session = loaded.session  # pyright: ignore[reportOptionalMemberAccess]
            old = session.turn.active  # pyright: ignore[reportOptionalMemberAccess]
            assert old is not None
            plan = attrs.evolve(old.plan, run_id=RunId(str(uuid.uuid4())))
            active = ActiveRun(plan, Draft(plan.message.id))
            ports = RunPorts(
                stage.provider,
                session.ports.tools(),
                session.ports.record,
                session.hub,
            )

            async def live(ctx):
                run = Run.make(active, ports, ctx, "loop")

                async def work():
                    active.draft.begin_round(1, 1)
                    active.draft.apply(TextDelta("text"))
                    return terminal

                await run.live(work)

            trace.clear()
            ref = stage.engine._system.spawn("a-run", live)
            await ref.wait_exited()
            assert_settled_in_order(trace)
            assert active.result is not None
            nursery.cancel_scope.cancel()
            loaded.ref.cancel(CancelCause.PARENT)  # pyright: ignore[reportOptionalMemberAccess]


def traced(stage):
    """Note commits, recorded messages and what watchers are told, in order."""
    spy, trace = spy_on(stage), []
    hub = stage.session._sessions.hub(stage.session.id)
    append, commit, put = spy.inner.append, spy.inner.commit, hub._put

    class Traced:
        def __getattr__(self, name):
            return getattr(inner, name)

        async def append(self, facts, settles=()):
            await append(facts, settles)

        async def commit(self, record):
            created = await commit(record)
            trace.append(record)
            return created

    inner = spy.inner
    spy.inner = Traced()

    class Feed:
        def put(self, told, size):
            trace.append(told.event)

        def close(self):
            pass

    hub._feeds.append(Feed())  # pyright: ignore[reportArgumentType]
    assert put is not None
    return trace


def assert_settled_in_order(trace):
    terminal = next(i for i, e in enumerate(trace) if isinstance(e, RunTerminal))
    changed = [
        i
        for i, e in enumerate(trace)
        if isinstance(e, MessagesChanged) and e.message.metadata.run_outcome
    ]
    # The message that says how it ended was stamped before, and told after, the fact.
    assert changed
    assert min(changed) > terminal
    metadata = trace[changed[0]].message.metadata
    assert metadata.run_outcome == trace[terminal].outcome
    assert metadata.run_stop_reason == trace[terminal].stop_reason
    ends = [
        i for i, e in enumerate(trace) if isinstance(e, StreamCompleted | StreamFailed)
    ]
    assert all(i > changed[0] for i in ends)


@pytest.mark.contract("RUN-14")
@pytest.mark.parametrize(
    "phase", ["message/recorded", "RunStarted", "ToolOutcome", "RunTerminal"]
)
async def test_a_cancel_while_a_step_is_made_durable_still_settles_once(
    tmp_path, phase
):
    async with open_stage(tmp_path, replies(ASK, DONE), Probe()) as stage:
        spy, asked = spy_on(stage), []

        def cancel(what):
            if what == phase and not asked:
                asked.append(what)
                nursery.start_soon(stage.session.cancel)

        spy.before = cancel
        results = []

        async def prompt():
            results.append(await stage.session.prompt("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
        (turn,) = results
        assert asked
        assert turn.outcome in ("aborted", "completed")
        journal = stage.journal()
        started = [r for r in journal if isinstance(r, RunStarted)]
        ended = [r for r in journal if isinstance(r, RunTerminal)]
        # Before the run's first step there is nothing to end.
        assert len(ended) == len(started)
        assert len(ended) == 1 or phase == "message/recorded"
        assert len(stage.provider.requests) <= 2
        if phase != "RunTerminal":
            assert turn.stop_reason in ("user_stop", "complete")


@pytest.mark.contract("TAP-10")
async def test_audit_facts_are_neither_sent_to_the_model_nor_found(tmp_path):
    from greenroom.protocol import Fact, FactKind, SourceType, canonical_json

    names = [
        "message/retracted",
        "message/compaction_indicator",
        "migration/backfill",
        "view/assembled",
        "provider/attempt_completed",
    ]
    script = replies([Fail("xylophone", status=400)], DONE)
    async with open_stage(tmp_path, script) as stage:
        # The failed attempt and the whole journal are audit facts too.
        await stage.session.prompt("first")
        loaded = stage.session._sessions.loaded(stage.session.id)
        record = loaded.session.ports.record  # pyright: ignore[reportOptionalMemberAccess]
        planted = [
            Fact(
                kind=FactKind.EVENT,
                name=name,
                source_type=SourceType.RUNTIME_EVENT,
                source_id=f"planted{number}",
                payload=canonical_json({"messageId": "none", "text": f"zebra{number}"}),
            )
            for number, name in enumerate(names)
        ]
        await record.append(planted)
        await stage.session.prompt("second")
        await stage.engine._world.writer.flush()  # pyright: ignore[reportAttributeAccessIssue]
        sent = repr(stage.provider.requests[-1])
        session = stage.session.id
        found = await stage.engine._readers.read(
            lambda reader: [
                word
                for word in [*(f"zebra{n}" for n in range(len(names))), "run_started"]
                if reader.search(word, scope_prefix=session)
            ]
        )
        assert found == []
        assert "zebra" not in sent
        assert await stage.engine._readers.read(lambda r: r.search("second"))


async def test_a_long_turn_writes_each_block_once(tmp_path):
    text = "x" * 2_000
    rounds = [[Say(text), Call("probe", {"n": n}), Halt("tool_use")] for n in range(20)]
    async with open_stage(tmp_path, replies(*rounds, DONE), Probe()) as stage:
        turn = await stage.session.prompt("go")
        revisions = [e for e in stage.tape() if e.fact.name == "message/recorded"]
        size = sum(len(entry.fact.payload) for entry in revisions)
        assert size < 21 * (len(text) + 2_000)
        (_, stored) = await stage.session.messages()
        assert stored.blocks == turn.message.blocks
        assert len(stored.blocks) == 41


async def test_what_no_fact_can_hold_is_cut_and_the_turn_goes_on(tmp_path):
    wide = "\x01" * 90_000

    async def huge(arguments, operation):
        await operation.dispatch()
        operation.report(diffs=[Diff("f", wide, wide)])
        return ToolResult(wide, diffs=(Diff("f", wide * 3),))

    call = Call("probe", '{"text": "' + "\\u0001" * 30_000 + '"}')
    rounds = replies([Say(wide * 4), call, Halt("tool_use")], DONE)
    async with open_stage(tmp_path, rounds, Probe(body=huge)) as stage:
        turn = await stage.session.prompt("go")
        assert turn.outcome == "completed"
        (_, stored) = await stage.session.messages()
        texts = [b.text for b in stored.blocks if isinstance(b, TextBlock)]
        assert "".join(texts).startswith(wide)
