"""Every request is described on the tape before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import msgspec
import pytest
import trio
from kit.rehearsal import Probe, open_stage, replies, spy_on
from kit.run_ports import change_run_ports
from kit.views import manifests_of, view_problems
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.backend import Refreshed
from greenroom.actors.context import ContextTooSmallError, SessionViews
from greenroom.actors.providers import Call, Fail, Halt, Say, Use
from greenroom.engine import Deny, Windows
from greenroom.protocol import (
    DiskFullError,
    ItemId,
    MessageId,
    MessageRecord,
    ModelRequest,
    RunId,
    SessionId,
    SessionSettings,
    SkillContext,
    TextBlock,
    ViewBuilder,
    canonical_json,
)
from greenroom.protocol.context import RequestIdentity, StoredManifest

DONE = [Say("done"), Use(400, 5), Halt()]
ASK = [Call("probe", {"n": 1}), Use(300, 5), Halt("tool_use")]
TOO_LONG = [Fail("maximum context length is 9000 tokens, requested 9500", status=400)]


def manifests(stage) -> list[Any]:
    return [stored.manifest for stored in manifests_of(stage.tape())]


def settings_of(stage) -> SessionSettings:
    assert stage.session.settings is not None
    return stage.session.settings


def set_window(stage, **about) -> Windows:
    windows = stage.engine._world.windows
    for name, value in about.items():
        setattr(windows, name, value)
    return windows


@attrs.define(eq=False)
class FakeRecovery:
    """A recovery that answers an overflow with what *change* makes of the request."""

    change: Callable[[Any], Any]

    async def begin(self, request):
        pass

    async def relieve(self, request, latch):
        return None

    async def recover(self, request, failure, latch):
        return self.change(request)

    def noticed(self, pressure):
        pass


def with_less_output(request):
    limit = (request.max_output_tokens or 16_384) // 2
    return msgspec.structs.replace(request, max_output_tokens=limit)


def with_the_last_message(request):
    return msgspec.structs.replace(request, messages=request.messages[-1:])


@pytest.mark.contract("CTX-03")
async def test_a_manifest_is_on_the_tape_before_each_request_and_once(tmp_path):
    seen = []
    plan = iter([ASK, [Fail("busy", status=503)], DONE])

    def script(request):
        tape = stage.tape()
        seen.append([m.manifest.request_seq for m in manifests_of(tape)])
        return next(plan)

    async with open_stage(tmp_path, script, Probe()) as stage:
        await stage.session.prompt("go")
        # The second request was sent twice, and described once.
        assert seen == [[1], [1, 2], [1, 2]]
        names = stage.names()
        first = names.index("view/assembled")
        assert first < names.index("provider/attempt_completed")


class FullDisk(DiskFullError):
    """The disk has no room for manifests."""


def no_manifests(what):
    return FullDisk("the disk is full") if what == "view/assembled" else None


@pytest.mark.contract("CTX-03")
async def test_a_request_with_tools_is_not_sent_without_its_manifest(tmp_path):
    async with open_stage(tmp_path, replies(DONE), Probe()) as stage:
        spy_on(stage).fail = no_manifests
        turn = await stage.session.prompt("go")
        assert stage.provider.requests == []
        assert (turn.outcome, turn.stop_reason) == ("error", "pre_stream_error")
        assert "was not kept" in (turn.message.metadata.error_text or "")


@pytest.mark.contract("CTX-03")
async def test_a_plain_chat_goes_on_without_its_manifest_and_says_so(tmp_path, caplog):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        spy_on(stage).fail = no_manifests
        turn = await stage.session.prompt("go")
        assert turn.outcome == "completed"
        assert "manifest of request 1" in caplog.text
        assert manifests(stage) == []


@pytest.mark.contract("CTX-03")
async def test_a_recovery_is_not_sent_without_its_manifest(tmp_path):
    async with open_stage(tmp_path, replies(TOO_LONG, DONE)) as stage:
        change_run_ports(stage, recovery=FakeRecovery(with_less_output))
        spy = spy_on_second(stage)
        turn = await stage.session.prompt("go")
        assert spy == ["view/assembled", "view/assembled"]
        assert len(stage.provider.requests) == 1
        assert turn.outcome == "error"


def spy_on_second(stage) -> list[str]:
    seen: list[str] = []

    class Record:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        async def append(self, facts, *args, **kwargs):
            if facts[0].name == "view/assembled":
                seen.append("view/assembled")
                if len(seen) == 2:
                    raise FullDisk("the disk is full")
            return await self.inner.append(facts, *args, **kwargs)

    ports = stage.session._sessions.loaded(stage.session.id).session.ports
    inner = ports.inner
    ports.inner = attrs.evolve(inner, record=Record(inner.record))
    return seen


@pytest.mark.contract("CTX-03")
async def test_a_request_whose_view_holds_a_skill_needs_its_manifest(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        skill = SkillContext(name="pdf", content_hash="0" * 64)

        class Prepared:
            def at(self, blocks):
                return Refreshed(stage.engine._tools.snapshot(), "use it", (), (skill,))

        async def prepare(plan, tools):
            return Prepared()

        spy_on(stage).fail = no_manifests
        change_run_ports(stage, prepare=prepare)
        turn = await stage.session.prompt("go")
        assert turn.outcome == "error"
        assert stage.provider.requests == []


@pytest.mark.contract("CTX-06")
async def test_task_and_policy_of_each_request_of_a_turn(tmp_path):
    script = replies(ASK, TOO_LONG, ASK, DONE, DONE)
    async with open_stage(tmp_path, script, Probe()) as stage:
        change_run_ports(stage, recovery=FakeRecovery(with_less_output))
        await stage.session.prompt("go")
        told = [(m.task_type, m.policy, m.selection) for m in manifests(stage)]
        shadow = "tool_loop_shadow_v1"
        assert told == [
            ("chat", "cache_aware_context_v2", "default"),
            ("tool_loop", shadow, "default"),
            ("tool_loop", "context_pressure_recovery_shadow_v1", None),
            ("tool_loop", shadow, "default"),
        ]
        assert [m.request_seq for m in manifests(stage)] == [1, 2, 3, 4]


@pytest.mark.contract("CTX-06", "CTX-07")
async def test_the_first_request_behind_an_answer_is_a_resume(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE), Probe(permission="?")) as stage:
        turns = []

        async def prompt():
            turns.append(await stage.session.prompt("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            (question,) = await stage.session.interactions()
            await stage.session.answer(question.id, Deny())
        assert turns[0].outcome == "completed"
        told = [(m.task_type, m.policy) for m in manifests(stage)]
        policy = "cache_aware_context_v2"
        assert told == [("chat", policy), ("resume", policy)]
        # Each was weighed on its own before it was sent (CTX-07).
        assert len(stage.provider.requests) == 2
        sizes = [m.token_budget.prompt_bytes for m in manifests(stage)]
        assert sizes == sorted(set(sizes))
        reasons = [part.reason for part in manifests(stage)[1].included]
        assert reasons == ["new_user_input", "resume_target"]


@pytest.mark.contract("CTX-07")
async def test_each_request_of_every_round_has_its_own_numbers(tmp_path):
    async with open_stage(tmp_path, replies(ASK, ASK, DONE), Probe()) as stage:
        set_window(stage, configured={"default": 50_000})
        await stage.session.prompt("go")
        budgets = [m.token_budget for m in manifests(stage)]
        assert len(budgets) == len(stage.provider.requests) == 3
        assert {b.context_length for b in budgets} == {50_000}
        assert {b.context_source for b in budgets} == {"configured"}
        # After a usage only what follows it is estimated.
        assert [b.anchored for b in budgets] == [False, True, True]
        sizes = [b.prompt_bytes for b in budgets]
        assert sizes == sorted(set(sizes))


@pytest.mark.contract("CTX-11")
async def test_an_unknown_window_is_told_as_such_and_limits_nothing(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        window = stage.engine.context_window(settings_of(stage))
        assert (window.tokens, window.source, window.in_force) == (
            None,
            "unknown",
            None,
        )
        assert str(window).startswith("unknown")
        await stage.session.prompt("word " * 39_000)
        (budget,) = (m.token_budget for m in manifests(stage))
        assert budget.context_length is None
        assert stage.provider.requests[0].max_output_tokens is None

        set_window(stage, fallback=100_000)
        window = stage.engine.context_window(settings_of(stage))
        assert (window.tokens, window.in_force) == (None, 100_000)
        assert str(window) == "unknown; 100,000 tokens are assumed"
        await stage.session.prompt("again")
        assert len(stage.provider.requests[1].messages) == 3


async def test_a_provider_that_names_its_window_is_believed(tmp_path):
    async with open_stage(tmp_path, replies(TOO_LONG, DONE)) as stage:
        await stage.session.prompt("go")
        window = stage.engine.context_window(settings_of(stage))
        assert (window.tokens, window.source) == (9_000, "provider")


@attrs.define(eq=False)
class Tape:
    """A tape that takes everything."""

    head: int = 0
    facts: list[Any] = attrs.field(factory=list)

    async def append(self, facts):
        self.facts += facts


def said(order, role, text):
    block = TextBlock(id=ItemId("i"), text=text)
    return MessageRecord(
        id=MessageId(f"m{order}"),
        order_seq=order,
        role=role,
        status="sent",
        blocks=(block,),
        created_at=0.0,
        updated_at=0.0,
    )


def view_of(turns, text):
    view = ViewBuilder("p", "m")
    view.add_system("be brief")
    for order in range(1, 2 * turns, 2):
        view.add_record(said(order, "user", f"question {order} {text}"))
        view.add_record(said(order + 1, "assistant", f"answer {order} {text}"))
    view.pin(said(1, "user", f"question 1 {text}"))
    view.add_record(said(2 * turns + 1, "user", "the question now"))
    view.begin_turn(said(2 * turns + 2, "assistant", ""))
    view.prefix_user("MEMORY " * 40)
    view.prefix_user("DIRECTIVE " * 40, "directive_context")
    return view


async def assembled(turns, text, window):
    """What the first request of a run carries, by the reasons of its parts."""
    windows = Windows(configured={"m": window})
    views = SessionViews(SessionId("s"), "life", windows, lambda: 0.0)
    tape, view = Tape(), view_of(turns, text)
    settings = SessionSettings(
        agent_id="a", title="", workspace="/", provider="p", model="m"
    )
    identity = RequestIdentity(RunId("r"), MessageId("m9"), 1, 1, "chat")
    request = ModelRequest(model="m", messages=view.messages)
    made = await views.for_run(settings, tape).assemble(request, view, identity)
    (stored,) = (
        msgspec.json.decode(f.payload, type=StoredManifest) for f in tape.facts
    )
    return made, stored.manifest


@pytest.mark.contract("CTX-08")
async def test_memory_directives_and_the_oldest_turns_give_way_in_that_order():
    drops = []
    for window in range(3_000, 500, -20):
        made, manifest = await assembled(3, "word " * 200, window)
        sent = repr(made.messages)
        # Whatever gives way, this stays, also where the estimate is far too large.
        assert "be brief" in sent
        assert "the question now" in sent
        assert "question 1" in sent
        gone = sum(e.count for e in manifest.excluded if e.reason == "out_of_budget")
        drops.append(("MEMORY" not in sent, "DIRECTIVE" not in sent, gone))
    steps = list(dict.fromkeys(drops))
    assert steps == [
        (False, False, 0),
        (True, False, 0),
        (True, True, 0),
        (True, True, 2),
        (True, True, 4),
        (True, True, 6),
    ]


@pytest.mark.contract("CTX-33")
async def test_a_first_message_that_gives_way_as_history_is_pinned_instead():
    made, manifest = await assembled(3, "word " * 200, 1_000)
    assert manifest.pin is not None
    assert manifest.pin.message_id == "m1"
    assert repr(made.messages).count("question 1 ") == 1
    assert [part.reason for part in manifest.included][:2] == [
        "system_prompt",
        "pinned_first_user",
    ]
    # It is named, and not copied.
    assert "question 1" not in canonical_json(manifest)
    with pytest.raises(ContextTooSmallError, match="context window has 150"):
        await assembled(3, "word " * 200, 150)


@pytest.mark.contract("CTX-08")
async def test_what_is_never_dropped_and_does_not_fit_is_not_sent(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        set_window(stage, configured={"default": 1_000})
        change_run_ports(stage, recovery=None)
        turn = await stage.session.prompt("word " * 3_000)
        assert stage.provider.requests == []
        assert turn.stop_reason == "context_window"
        assert "has 1000" in (turn.message.metadata.error_text or "")


@pytest.mark.contract("CTX-08")
async def test_a_turn_whose_work_does_not_fit_any_more_is_not_sent_cut(tmp_path):
    probe = Probe(result="word " * 3_000)
    async with open_stage(tmp_path, replies(ASK, DONE), probe) as stage:
        set_window(stage, configured={"default": 1_000})
        change_run_ports(stage, recovery=None, context_budget=None)
        turn = await stage.session.prompt("go")
        assert len(stage.provider.requests) == 1
        assert turn.stop_reason == "context_window"
        assert "has 1000" in (turn.message.metadata.error_text or "")


@pytest.mark.contract("CTX-12")
@pytest.mark.parametrize(
    "second",
    [[Fail("no", status=400)], [Say("x"), Use(0, 1), Halt()], [Say("x"), Halt()]],
    ids=["error", "zero", "none"],
)
async def test_an_attempt_without_a_usable_count_leaves_the_anchor(tmp_path, second):
    async with open_stage(tmp_path, replies(DONE, second)) as stage:
        await stage.session.prompt("one")
        views = stage.session._sessions.loaded(stage.session.id).session.ports.views  # pyright: ignore[reportOptionalMemberAccess]
        assert views is not None
        before = views.anchor
        assert before is not None
        assert before.prompt_tokens == 400
        await stage.session.prompt("two")
        assert views.anchor is before


@pytest.mark.contract("CTX-12")
async def test_a_payload_that_is_not_sent_again_sets_no_anchor(tmp_path):
    async with open_stage(tmp_path, replies(DONE, TOO_LONG, DONE)) as stage:
        await stage.session.prompt("one")
        views = stage.session._sessions.loaded(stage.session.id).session.ports.views  # pyright: ignore[reportOptionalMemberAccess]
        assert views is not None
        before = views.anchor
        change_run_ports(stage, recovery=FakeRecovery(with_the_last_message))
        await stage.session.prompt("two")
        assert len(stage.provider.requests[-1].messages) == 1
        assert views.anchor is before


async def test_the_next_request_of_a_turn_begins_with_the_one_before(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE, DONE), Probe()) as stage:
        await stage.session.prompt("go")
        await stage.session.prompt("again")
        prefixes = [m.prefix for m in manifests(stage)]
        assert prefixes[0] is None
        assert [(p.kept, p.messages, p.changed) for p in prefixes[1:]] == [
            (1, 1, None),
            (3, 3, None),
        ]


async def test_other_instructions_are_why_a_request_begins_in_another_way(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE), system_prompt="a") as stage:
        await stage.session.prompt("go")
        await stage.session.configure(system_prompt="b")
        await stage.session.prompt("again")
        prefix = manifests(stage)[-1].prefix
        assert (prefix.kept, prefix.changed) == (0, "instructions_changed")


async def test_a_manifest_that_lies_about_a_request_is_found(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE), Probe()) as stage:
        await stage.session.prompt("go")
        tape, requests = stage.tape(), stage.provider.requests
        assert list(view_problems(tape, requests)) == []
        at = [n for n, e in enumerate(tape) if e.fact.name == "view/assembled"][-1]
        without = tape[:at] + tape[at + 1 :]
        assert any("without a manifest" in p for p in view_problems(without, requests))
        text = tape[at].fact.payload.replace('"kept":1', '"kept":0')
        lied = msgspec.structs.replace(
            tape[at], fact=msgspec.structs.replace(tape[at].fact, payload=text)
        )
        found = [*view_problems([*tape[:at], lied, *tape[at + 1 :]], requests)]
        assert any("not what its hash is of" in p for p in found)
        assert any("says not why" in p for p in found)


@pytest.mark.contract("TRY-21")
async def test_a_run_may_send_only_the_request_that_was_described_last(tmp_path):
    async with open_stage(tmp_path, replies(ASK, DONE), Probe()) as stage:
        ports = stage.session._sessions.loaded(stage.session.id).session.ports  # pyright: ignore[reportOptionalMemberAccess]
        hub = stage.session._sessions.hub(stage.session.id)
        run = ports.for_run(settings_of(stage), hub, lambda _: True)
        other = ports.for_run(settings_of(stage), hub, lambda _: False)
        view = view_of(1, "x")
        request = ModelRequest(model="default", messages=view.messages)
        for seq in (1, 2):
            assert not run.authority(seq)
            identity = RequestIdentity(RunId("r"), MessageId("m9"), seq, seq, "chat")
            for each in (run, other):
                assert each.views is not None
                await each.views.assemble(request, view, identity)
            assert run.authority(seq)
            # Whose turn it is not sends nothing, described or not.
            assert not other.authority(seq)
        assert not run.authority(1)
