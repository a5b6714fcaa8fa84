"""Payloads that change within a round: after an overflow, or without one item."""

from __future__ import annotations

import attrs
import msgspec
import pytest
import trio
from kit.attempts import attempts_of as attempts
from kit.rehearsal import Probe, calls_of, open_stage, replies
from kit.run_ports import change_run_ports
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.providers import Call, Fail, Halt, Say
from greenroom.protocol import (
    IMAGE_NOTE,
    ImageBlock,
    ImagePart,
    ModelRequest,
    TextPart,
    UserMessage,
    canonical_json,
    sha256_hex,
)

DONE = [Say("done"), Halt()]
BUSY = [Fail("overloaded", status=503)]
TOO_LONG = [Fail("prompt is too long: 200000 tokens > 100000 maximum", status=400)]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]


@attrs.define(eq=False)
class Shorter:
    """A recovery that makes each payload another one; it notes what it was given."""

    asked: list = attrs.field(factory=list)
    same: bool = False
    gives_up: bool = False
    gate: trio.Event | None = None

    async def begin(self, request):
        await trio.lowlevel.checkpoint()

    def noticed(self, pressure):
        pass

    async def relieve(self, request, latch):
        await trio.lowlevel.checkpoint()

    async def recover(self, request, failure, latch):
        await trio.lowlevel.checkpoint()
        self.asked.append((request, failure))
        if self.gate is not None:
            await self.gate.wait()
        if self.gives_up:
            return "provider_rejected_retry"
        note = UserMessage((TextPart(f"[shortened {len(self.asked)} times]"),))
        messages = request.messages if self.same else (note, *request.messages[1:])
        return msgspec.structs.replace(request, messages=messages)


def sends(stage):
    """(round, request, attempt, origin) of every send, and the hash of its payload."""
    facts = attempts(stage)
    numbers = [
        (a["logicalRound"], a["requestSeq"], a["physicalAttempt"], a["requestOrigin"])
        for a in facts
    ]
    return numbers, [sha256_hex(canonical_json(r)) for r in stage.provider.requests]


@pytest.mark.contract("TRY-22")
async def test_a_changed_payload_is_the_next_request_and_begins_with_attempt_one(
    tmp_path, autojump_clock: MockClock
):
    recovery = Shorter()
    async with open_stage(tmp_path, replies(BUSY, TOO_LONG, DONE)) as stage:
        change_run_ports(stage, recovery=recovery)
        turn = await stage.session.prompt("go")
        assert turn.text == "done"
        numbers, hashes = sends(stage)
        assert numbers == [
            (1, 1, 1, "chat"),
            (1, 1, 2, "chat"),
            (1, 2, 1, "context_recovery"),
        ]
        assert hashes[0] == hashes[1] != hashes[2]
        assert [a["attemptOrigin"] for a in attempts(stage)] == [
            "initial",
            "transient_retry",
            "initial",
        ]
        assert turn.message.metadata.request_seq == 2


@pytest.mark.contract("RUN-05")
async def test_neither_retries_nor_recovery_change_the_number_of_rounds(
    tmp_path, autojump_clock: MockClock
):
    script = replies(BUSY, TOO_LONG, BUSY, DONE)
    async with open_stage(tmp_path, script, max_rounds=1) as stage:
        change_run_ports(stage, recovery=Shorter())
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.text) == ("completed", "done")
        metadata = turn.message.metadata
        assert (metadata.provider_rounds, metadata.max_provider_rounds) == (1, 1)


async def test_a_changed_payload_brings_no_new_retries(
    tmp_path, autojump_clock: MockClock
):
    script = replies(BUSY, TOO_LONG, BUSY, BUSY, DONE)
    async with open_stage(tmp_path, script) as stage:
        change_run_ports(stage, recovery=Shorter())
        assert (await stage.session.prompt("go")).outcome == "error"
        assert attempts(stage)[-1]["retryDecision"] == "retry_budget_exhausted"
        assert len(stage.provider.requests) == 4


async def test_calls_belong_to_the_request_that_brought_them(tmp_path):
    probe = Probe()
    async with open_stage(tmp_path, replies(TOO_LONG, ASK, DONE), probe) as stage:
        change_run_ports(stage, recovery=Shorter())
        turn = await stage.session.prompt("go")
        assert calls_of(turn.message)[0].request_seq == 2
        numbers, _ = sends(stage)
        assert numbers[-1] == (2, 3, 1, "tool_loop")


async def test_a_run_recovers_three_times_and_then_ends(tmp_path):
    recovery = Shorter()
    asks = [[Call("probe", {"n": n}), Halt("tool_use")] for n in range(4)]
    script = replies(*(each for ask in asks for each in (TOO_LONG, ask)))
    async with open_stage(tmp_path, script, Probe()) as stage:
        change_run_ports(stage, recovery=recovery)
        turn = await stage.session.prompt("go")
        assert (turn.outcome, turn.stop_reason) == ("error", "context_window")
        assert len(recovery.asked) == 3
        assert len(stage.provider.requests) == 7


async def test_one_recovery_changes_the_payload_a_bounded_number_of_times(tmp_path):
    recovery = Shorter()
    async with open_stage(tmp_path, lambda _: TOO_LONG) as stage:
        change_run_ports(stage, recovery=recovery)
        turn = await stage.session.prompt("go")
        assert turn.stop_reason == "context_window"
        assert len(recovery.asked) == 4
        assert len(stage.provider.requests) == 5


@pytest.mark.parametrize("recovery", [Shorter(same=True), Shorter(gives_up=True)])
async def test_what_was_not_changed_is_not_sent_again(tmp_path, recovery):
    async with open_stage(tmp_path, replies(TOO_LONG, DONE)) as stage:
        change_run_ports(stage, recovery=recovery)
        turn = await stage.session.prompt("go")
        assert turn.stop_reason == "context_window"
        assert len(stage.provider.requests) == len(recovery.asked) == 1


async def test_an_overflow_after_output_is_not_recovered_from(tmp_path):
    recovery = Shorter()
    script = replies([Say("half"), *TOO_LONG], DONE)
    async with open_stage(tmp_path, script) as stage:
        change_run_ports(stage, recovery=recovery)
        turn = await stage.session.prompt("go")
        assert (turn.text, recovery.asked) == ("half", [])
        assert len(stage.provider.requests) == 1


@pytest.mark.contract("RUN-14")
async def test_a_cancel_during_a_recovery_ends_the_run_at_once(tmp_path):
    recovery = Shorter(gate=trio.Event())
    async with open_stage(tmp_path, replies(TOO_LONG, DONE)) as stage:
        change_run_ports(stage, recovery=recovery)
        results = []

        async def prompt():
            results.append(await stage.session.prompt("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt)
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        assert results[0].stop_reason == "user_stop"
        assert len(stage.provider.requests) == 1


#### An item that the provider refuses

PIXEL = ImagePart("image/png", "iVBORw0KGgo=")


def refuses_images(request: ModelRequest):
    """A provider that can't read an image, wherever in the request it is."""
    for number, message in enumerate(request.messages):
        parts = message.parts if isinstance(message, UserMessage) else ()
        for place, part in enumerate(parts):
            if isinstance(part, ImagePart):
                where = f"messages.{number}.content.{place}.image.source.base64"
                return [Fail(f"{where}: Could not process image", status=400)]
    return ASK if len(request.messages) == 1 else DONE


async def test_a_refused_image_is_left_out_and_stays_on_the_tape(tmp_path):
    async with open_stage(tmp_path, refuses_images, Probe()) as stage:
        turn = await stage.session.prompt([TextPart("look"), PIXEL])
        assert (turn.outcome, turn.text) == ("completed", "done")
        requests = stage.provider.requests
        sent = [request.messages[0] for request in requests[:2]]
        assert sent == [
            UserMessage((TextPart("look"), PIXEL)),
            UserMessage((TextPart("look"), TextPart(IMAGE_NOTE))),
        ]
        # Once in this run, and in the next turn not even that.
        await stage.session.prompt("and now?")
        numbers, _ = sends(stage)
        assert [n[:2] for n in numbers] == [(1, 1), (1, 2), (2, 3), (1, 1)]
        assert numbers[1][3] == "context_recovery"
        (asked, *_) = await stage.session.messages()
        assert [type(block) for block in asked.blocks][-1] is ImageBlock


async def test_a_request_that_is_refused_again_ends_the_turn(tmp_path):
    refusal = [Fail("Could not process image", status=400)]
    async with open_stage(tmp_path, lambda _: refusal) as stage:
        turn = await stage.session.prompt([PIXEL, PIXEL, TextPart("look")])
        assert turn.outcome == "error"
        assert len(stage.provider.requests) == 2


async def test_each_bad_image_costs_one_request_of_some_round(tmp_path):
    other = ImagePart("image/png", "iVBORw0KGgp=")
    async with open_stage(tmp_path, refuses_images, Probe()) as stage:
        first = await stage.session.prompt([PIXEL, other, TextPart("look")])
        assert first.outcome == "error"
        # What was learnt is kept: the session is not stuck.
        assert (await stage.session.prompt("and now?")).outcome == "completed"
