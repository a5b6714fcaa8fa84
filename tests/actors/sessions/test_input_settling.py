"""Claims: settled once, whatever fails; blocked input; what a restart finds."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from kit.rehearsal import Probe, RecordSpy, open_stage, replies, spy_on
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Fail, Halt, Hang, RehearsalProvider, Say
from greenroom.engine import SessionClosedError, TurnFailedError, TurnRefusedError
from greenroom.protocol import (
    DiskFullError,
    ImagePart,
    InputRefusedError,
    RunStarted,
    TextBlock,
    TextPart,
    UserMessage,
)
from greenroom.storage import names

DONE = [Say("done"), Halt()]
HELD = [Call("probe", {"n": 1}), Halt("tool_use")]
BROKEN = [Fail("no", status=400)]
PICTURE = ImagePart("image/png", "aWNvbg==")


def said(messages) -> list[str]:
    return [
        "".join(b.text for b in m.blocks if isinstance(b, TextBlock))
        for m in messages
        if m.role == "user"
    ]


def loaded(stage) -> Any:
    found = stage.session._sessions.loaded(stage.session.id)
    assert found is not None
    return found.session


def code_of(exc_info) -> str:
    return exc_info.value.code


#### PIN-10


@attrs.define(eq=False)
class Untold(RecordSpy):
    """A record whose first append of a kind is written, and then telling raises."""

    state: str = "claimed"

    async def append(self, facts: Any, settles: Any = ()) -> None:
        await self.inner.append(facts, settles)
        if self.state and f'"state":"{self.state}"' in facts[0].payload:
            self.state = ""
            raise RuntimeError("nobody could be told")


@pytest.mark.contract("PIN-10")
@pytest.mark.parametrize("mode", ["queue", "steer"])
async def test_a_claim_that_could_not_be_told_has_its_turn_all_the_same(tmp_path, mode):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        session = loaded(stage)
        session.ports = attrs.evolve(session.ports, record=Untold(session.ports.record))
        put = stage.session.queue if mode == "queue" else stage.session.steer
        await put("a", command_id="a")
        await wait_all_tasks_blocked()
        assert await stage.session.inputs() == ()
        ends = [e.fact.payload for e in stage.tape() if '"consumed"' in e.fact.payload]
        assert len(ends) == 1
        assert (await stage.session.prompt("b")).text == "done"
        assert said(await stage.session.messages()) == ["a", "b"]


#### PIN-05


@pytest.mark.contract("PIN-05")
async def test_a_steer_whose_claim_is_not_written_is_as_it_was(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        writes: list[str] = []

        def fail(what):
            writes.append(what)
            # Its row, then its claim.
            return DiskFullError("the disk is full") if len(writes) == 2 else None

        spy_on(stage).fail = fail
        await stage.session.steer("s", command_id="s")
        await wait_all_tasks_blocked()
        (row,) = await stage.session.inputs()
        (message,) = await stage.session.messages()
        assert (row.state, row.assistant_message_id) == ("pending", None)
        assert message.metadata.input_receipt is not None
        assert message.metadata.input_receipt.read_at is None
        # The next load lets it in.
        assert (await stage.session.prompt("next")).text == "done"
        assert said(await stage.session.messages()) == ["s", "next"]


@attrs.define(eq=False)
class Batches(RecordSpy):
    """A record that keeps what was written together."""

    batches: list[str] = attrs.field(factory=list)

    async def append(self, facts: Any, settles: Any = ()) -> None:
        await self.inner.append(facts, settles)
        self.batches.append("\n".join(fact.payload for fact in facts))


@pytest.mark.contract("PIN-05")
async def test_a_claim_of_a_steer_and_its_end_are_each_written_at_once(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        session = loaded(stage)
        spy = Batches(session.ports.record)
        session.ports = attrs.evolve(session.ports, record=spy)
        await stage.session.steer("s", command_id="s")
        await wait_all_tasks_blocked()
        user, reply = await stage.session.messages()
        (claim,) = [b for b in spy.batches if '"state":"claimed"' in b]
        # The reserved reply, and that the message was read.
        assert f'"assistantMessageId":"{reply.id}"' in claim
        assert f'"id":"{reply.id}"' in claim
        assert f'"id":"{user.id}"' in claim
        assert '"readAt":' in claim
        (end,) = [b for b in spy.batches if '"state":"consumed"' in b]
        assert f'"id":"{user.id}"' in end
        assert '"status":"sent"' in end


@pytest.mark.contract("PIN-05")
@pytest.mark.parametrize("mode", ["queue", "steer"])
async def test_a_consumption_is_written_whole_or_at_the_next_load(tmp_path, mode):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        spy, rows = spy_on(stage), [0]

        def fail(what):
            rows[0] += what == "input/recorded"
            if rows[0] < 3:
                return None
            spy.fail = lambda _: None
            return DiskFullError("the disk is full")

        spy.fail = fail
        put = stage.session.queue if mode == "queue" else stage.session.steer
        await put("a", command_id="a")
        await wait_all_tasks_blocked()
        (row,) = await stage.session.inputs()
        user, reply = await stage.session.messages()
        assert (row.state, reply.status) == ("claimed", "sent")
        assert user.status == ("sent" if mode == "queue" else "pending")
        await stage.engine.open_session(stage.session.id)
        assert await stage.session.inputs() == ()
        assert [m.status for m in await stage.session.messages()] == ["sent", "sent"]


#### PIN-09


@pytest.mark.contract("PIN-09")
@pytest.mark.parametrize("when", ["before", "during"])
async def test_what_comes_during_a_turn_is_remembered_when_it_fails(tmp_path, when):
    # After a turn that failed only something new lets more in; that it came while the
    # turn ran is stronger than that the turn has ended.
    probe = Probe(gate=trio.Event())
    first = [DONE] if when == "during" else [HELD, DONE]
    fails = [HELD, BROKEN] if when == "during" else [BROKEN]
    script = replies(*first, *fails, DONE)
    async with open_stage(tmp_path, script, probe) as stage:
        session = stage.session
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.prompt, "first")
            await wait_all_tasks_blocked()
            await session.queue("fails", command_id="a")
            await wait_all_tasks_blocked()
            assert probe.reached.is_set()
            await session.queue("next", command_id="b")
            assert probe.gate is not None
            probe.gate.set()
        await wait_all_tasks_blocked()
        rows = {row.id: row.delivery for row in await session.inputs()}
        after = said(await session.messages())
        if when == "during":
            assert (rows, after) == ({"a": "returned"}, ["first", "next"])
        else:
            assert (rows, after) == ({"a": "returned", "b": "waiting"}, ["first"])


#### PIN-11


@pytest.mark.contract("PIN-11")
@pytest.mark.parametrize(
    ("turn", "left", "shown"),
    [
        ("completed", [], ["q"]),
        ("aborted", [], ["q"]),
        ("error", ["returned"], []),
    ],
)
async def test_the_end_of_a_queued_turn_settles_its_claim(tmp_path, turn, left, shown):
    script = {"completed": DONE, "aborted": [Hang()], "error": BROKEN}[turn]
    async with open_stage(tmp_path, replies(script)) as stage:
        await stage.session.queue("q", command_id="q")
        await wait_all_tasks_blocked()
        await stage.session.cancel()
        await wait_all_tasks_blocked()
        assert [row.delivery for row in await stage.session.inputs()] == left
        assert said(await stage.session.messages()) == shown
        assert stage.journal()[-1].outcome == turn


@pytest.mark.contract("PIN-11")
async def test_what_was_rolled_back_is_in_no_later_request(tmp_path):
    async with open_stage(tmp_path, replies(DONE, BROKEN, DONE)) as stage:
        await stage.session.prompt("first")
        await stage.session.queue("q", command_id="q")
        await wait_all_tasks_blocked()
        await stage.session.delete_input("q")
        await stage.session.prompt("next")
        last = stage.provider.requests[-1].messages
        parts = [m.parts for m in last if isinstance(m, UserMessage)]
        assert parts == [(TextPart("first"),), (TextPart("next"),)]
        assert said(await stage.session.messages()) == ["first", "next"]


@pytest.mark.contract("PIN-11")
async def test_a_pause_of_a_queued_turn_consumes_its_claim(tmp_path):
    asks = replies([Call("probe", {"n": 1}), Halt("tool_use")])
    async with open_stage(tmp_path, asks, Probe(permission="may it?")) as stage:
        await stage.session.queue("q")
        await wait_all_tasks_blocked()
        assert len(await stage.session.interactions()) == 1
        assert await stage.session.inputs() == ()
        await stage.session.cancel()


@pytest.mark.contract("PIN-11")
async def test_a_steer_is_consumed_also_by_an_error_and_its_message_stays(tmp_path):
    async with open_stage(tmp_path, replies(BROKEN)) as stage:
        await stage.session.steer("s")
        await wait_all_tasks_blocked()
        user, reply = await stage.session.messages()
        assert (user.status, reply.status) == ("sent", "error")
        assert await stage.session.inputs() == ()


async def sent_behind_a_turn(stage, nursery, failed):
    """A prompt that waits as a row; *failed* gets how it ended."""

    async def first():
        await stage.session.prompt("first")

    async def second():
        try:
            failed.append((await stage.session.prompt("go", command_id="go")).outcome)
        except (TurnFailedError, SessionClosedError) as exc:
            failed.append(getattr(exc, "code", "exited"))

    nursery.start_soon(first)
    await wait_all_tasks_blocked()
    nursery.start_soon(second)
    await wait_all_tasks_blocked()


@pytest.mark.contract("PIN-11")
@pytest.mark.parametrize(
    ("what", "shown", "left"),
    [
        # The run is registered: consumed. (The next load mends the message.)
        ("RunTerminal", ["first", "go"], []),
        # No user's message: released.
        ("message/recorded", ["first"], ["waiting"]),
        # A user's message, no run: rolled back and released.
        ("RunStarted", ["first"], ["returned"]),
    ],
)
async def test_a_direct_send_whose_journal_fails_is_one_of_three(
    tmp_path, what, shown, left
):
    probe = Probe(gate=trio.Event())
    async with open_stage(tmp_path, replies(HELD, DONE, DONE), probe) as stage:
        failed: list[str] = []
        async with trio.open_nursery() as nursery:
            await sent_behind_a_turn(stage, nursery, failed)
            (row,) = await stage.session.inputs()
            assert (row.sent, row.delivery) == (True, "waiting")
            spy = spy_on(stage)
            arm(spy, what)
            assert probe.gate is not None
            probe.gate.set()
        assert failed == ["turn_failed"]
        await wait_all_tasks_blocked()
        assert said(await stage.session.messages()) == shown
        assert [row.delivery for row in await stage.session.inputs()] == left


def arm(spy, what):
    """Fail one write of the turn that is let in next."""
    claims: list[str] = []

    def fail(written):
        if written == "input/recorded":
            claims.append(written)
        # The claim is written; the row is consumed in the append of its messages.
        second = what == "message/recorded" and len(claims) == 2
        if not second and written != what:
            return None
        spy.fail = lambda _: None
        return DiskFullError("the disk is full")

    spy.fail = fail


#### PIN-12


@attrs.define(eq=False)
class Blind:
    """A provider of which only some models read images."""

    inner: RehearsalProvider

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def reads_images(self, model: str) -> bool:
        return model == "seeing"


def blind(*rounds) -> Blind:
    return Blind(RehearsalProvider(replies(*rounds)))


@pytest.mark.contract("PIN-12")
@pytest.mark.parametrize("answer", ["retry", "degrade", "delete"])
async def test_an_image_that_can_not_be_sent_waits_for_a_decision(tmp_path, answer):
    provider = blind(DONE, DONE, DONE)
    async with open_stage(tmp_path, [], provider=provider) as stage:
        session = stage.session
        await session.queue([TextPart("see"), PICTURE], command_id="a")
        await session.queue("behind", command_id="b")
        await wait_all_tasks_blocked()
        rows = await session.inputs()
        assert [row.delivery for row in rows] == ["blocked", "waiting"]
        assert "reads none" in rows[0].blocking[0]
        assert (provider.requests, await session.messages()) == ([], [])
        # Another session goes on.
        other = await stage.engine.create_session(workspace=tmp_path)
        await other.queue("elsewhere")
        await wait_all_tasks_blocked()
        assert said(await other.messages()) == ["elsewhere"]
        if answer == "retry":
            await session.configure(model="seeing")
            await session.retry_input("a")
        elif answer == "degrade":
            await session.degrade_input("a")
        else:
            await session.delete_input("a")
        await wait_all_tasks_blocked()
        seen = [m for m in await session.messages() if m.role == "user"]
        kinds = [[type(block).__name__ for block in m.blocks] for m in seen]
        assert (
            kinds
            == {
                "retry": [["TextBlock", "ImageBlock"], ["TextBlock"]],
                "degrade": [["TextBlock"], ["TextBlock"]],
                "delete": [["TextBlock"]],
            }[answer]
        )


async def test_a_prompt_that_needs_a_decision_says_so_and_waits(tmp_path):
    provider = blind(DONE)
    async with open_stage(tmp_path, [], provider=provider) as stage:
        with pytest.raises(Exception, match="reads none") as caught:
            await stage.session.prompt(
                [TextPart("see"), PICTURE], command_id="p", endpoint="gateway 7"
            )
        assert code_of(caught) == "input_blocked"
        (arrived,) = [e for e in stage.tape() if e.fact.name == names.ENDPOINT_RECEIVED]
        assert arrived.fact.source_id == "p"
        assert [row.delivery for row in await stage.session.inputs()] == ["blocked"]
        await stage.session.degrade_input("p")
        turn = await stage.session.prompt([TextPart("see"), PICTURE], command_id="p")
        assert turn.text == "done"


async def test_a_steer_loses_its_images_and_keeps_its_words(tmp_path):
    provider = blind(DONE)
    async with open_stage(tmp_path, [], provider=provider) as stage:
        await stage.session.steer([TextPart("see"), PICTURE], command_id="s")
        await wait_all_tasks_blocked()
        (row,) = await stage.session.inputs()
        assert (row.mode, row.delivery) == ("steer", "blocked")
        await stage.session.degrade_input("s")
        await wait_all_tasks_blocked()
        user, _ = await stage.session.messages()
        assert [type(block).__name__ for block in user.blocks] == ["TextBlock"]
        again = await stage.session.steer([TextPart("see"), PICTURE], command_id="s")
        assert again.delivery == "delivered"


async def test_nothing_is_left_of_an_input_that_is_only_images(tmp_path):
    async with open_stage(tmp_path, [], provider=blind()) as stage:
        await stage.session.queue([PICTURE], command_id="a")
        await wait_all_tasks_blocked()
        with pytest.raises(InputRefusedError) as caught:
            await stage.session.degrade_input("a")
        assert code_of(caught) == "nothing_left"
        await stage.session.delete_input("a")


#### PIN-07


@pytest.mark.contract("PIN-07")
async def test_a_backend_without_batches_is_cancelled_for_a_steer(tmp_path):
    # Proved against the port: what such a backend streams is cut, its message is
    # settled, and the next prompt carries the steer in a message of its own.
    async with open_stage(tmp_path, replies([Say("half"), Hang()], DONE)) as stage:
        session = loaded(stage)
        session.ports = attrs.evolve(session.ports, steers_by_cancel=True)
        turns = []

        async def prompt():
            turns.append(await stage.session.prompt("first"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            assert stage.provider.active == 1
            await stage.session.steer("rather")
            await wait_all_tasks_blocked()
        assert (turns[0].outcome, turns[0].stop_reason, turns[0].text) == (
            "completed",
            "pending_input",
            "half",
        )
        assert stage.provider.active == 0
        messages = await stage.session.messages()
        assert [m.role for m in messages] == ["user", "assistant"] * 2
        assert said(messages) == ["first", "rather"]


#### A restart


@pytest.mark.contract("PIN-14")
async def test_a_steer_that_was_not_read_has_its_turn_when_the_session_is_loaded(
    tmp_path,
):
    probe = Probe(gate=trio.Event())
    async with open_stage(tmp_path, replies(HELD), probe) as stage:
        async with trio.open_nursery() as nursery:

            async def prompt():
                with pytest.raises((TurnFailedError, TurnRefusedError)):
                    await stage.session.prompt("first")

            nursery.start_soon(stage.session.prompt, "first")
            await probe.reached.wait()
            await stage.session.queue("later", command_id="q")
            await stage.session.steer("now", command_id="s")
            loaded(stage).ports.record.tape.head += 1_000
            nursery.cancel_scope.cancel()
        session_id = stage.session.id
    async with open_stage(
        tmp_path, replies(DONE, DONE), session_id=session_id
    ) as stage:
        await wait_all_tasks_blocked()
        assert said(await stage.session.messages()) == ["first", "now", "later"]


async def test_the_queue_waits_in_a_session_that_is_only_loaded(tmp_path):
    probe = Probe(gate=trio.Event())
    async with open_stage(tmp_path, replies(HELD), probe) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "first")
            await probe.reached.wait()
            await stage.session.queue("later", command_id="q")
            nursery.cancel_scope.cancel()
        session_id = stage.session.id
    async with open_stage(
        tmp_path, replies(DONE, DONE), session_id=session_id
    ) as stage:
        await wait_all_tasks_blocked()
        assert said(await stage.session.messages()) == ["first"]
        assert [row.delivery for row in await stage.session.inputs()] == ["waiting"]
        await stage.session.release_inputs()
        await wait_all_tasks_blocked()
        assert said(await stage.session.messages()) == ["first", "later"]


#### JRN-24, as a trace


async def test_the_writes_of_a_queued_turn_have_one_order(tmp_path):
    async with open_stage(tmp_path, replies(HELD, DONE), Probe()) as stage:
        before = len(stage.tape())
        await stage.session.queue("q")
        await wait_all_tasks_blocked()
        names = stage.names()[before:]
        wanted = [
            "input/recorded",
            "input/recorded",
            "message/recorded",
            "message/recorded",
            "execution/run_started",
            "execution/dispatch_committed",
            "execution/tool_outcome",
            "execution/run_terminal",
            "input/recorded",
        ]
        places = iter(names)
        assert all(name in places for name in wanted), names
        assert isinstance(stage.journal()[0], RunStarted)
        assert names[-1] == "input/recorded"
