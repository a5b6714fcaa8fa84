"""Every message of a tape is in a request, or its manifest says why it is not."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given, settings as budget, strategies as st
from kit.compacting import SETTINGS
from kit.rehearsal import open_stage, replies
from kit.stores import S1, MemoryWorld, Peer
from kit.views import manifests_of

from greenroom.actors.providers import Halt, Say
from greenroom.actors.sessions._earlier import Earlier
from greenroom.actors.sessions._history import History
from greenroom.protocol import (
    GreenroomError,
    ItemId,
    MessageId,
    MessageMetadata,
    MessageRecord,
    RunId,
    SessionId,
    TapeEntry,
    TextBlock,
    ViewBuilder,
)
from greenroom.protocol.context import (
    Boundary,
    Numbers,
    Preflight,
    Reconstruction,
    RequestIdentity,
    RequestKind,
    Tally,
    TapeState,
    ViewManifest,
    assemble_manifest,
    choose_policy,
)
from greenroom.storage import Tape, message_fact, retraction_fact

STEPS = st.lists(
    st.one_of(
        st.sampled_from(["turn", "empty", "failed", "compaction"]),
        st.integers(1, 5),
    ),
    max_size=9,
)
"""Turns of a kind; a number takes so many of the newest messages back."""


@attrs.define(eq=False)
class Told:
    """A tape that messages are written to, one after the other."""

    peer: Peer = attrs.field(factory=lambda: MemoryWorld().join())
    tape: Tape = attrs.Factory(lambda told: told.peer.tape(), takes_self=True)
    live: list[MessageRecord] = attrs.field(factory=list)
    written: int = 0

    def say(self, role: Any, said: str, status: Any = "sent", **about: Any) -> None:
        self.written += 1
        name = MessageId(f"m{self.written}")
        record = MessageRecord(
            id=name,
            order_seq=self.live[-1].order_seq + 1 if self.live else 1,
            role=role,
            status="pending",
            blocks=(TextBlock(id=ItemId(f"{name}.0"), text=said),),
            metadata=MessageMetadata(provider="p", model="m", **about),
            created_at=0.0,
            updated_at=1.0,
        )
        ended = msgspec.structs.replace(record, status=status, updated_at=2.0)
        self._write([message_fact(record), message_fact(ended)])
        self.live.append(ended)

    def turn(self, kind: str) -> None:
        about: Any = {"message_type": "compaction"} if kind == "compaction" else {}
        self.say("user", "" if kind == "empty" else "a question")
        status = "error" if kind == "failed" else "sent"
        self.say("assistant", "an answer", status, **about)

    def take_back(self, count: int) -> None:
        gone, self.live = self.live[-count:], self.live[:-count]
        self._write([retraction_fact(record.id) for record in gone])

    def _write(self, facts: Any) -> None:
        self.tape.append_piece(facts, now=1.0).run(self.peer.store)

    async def history(self, cursor: int) -> History:
        """The history as whoever loads the session has it."""
        store = self.peer.store

        async def read(before: int | None) -> Earlier:
            records = store.messages(S1, before, 500)
            finished = [each for each in records if each.status != "pending"]
            return Earlier(finished, store.retracted_messages(S1))

        state = Reconstruction(cursor_order_seq=cursor, summary="so far")
        history = History([], read, Boundary("compaction/auto", 9, state))
        await history.complete()
        return history


async def manifest_of(told: Told, cursor: int, drops: int) -> ViewManifest:
    """The manifest of a request for the newest question, a steer waiting behind it."""
    told.say("user", "the question now")
    cursor = min(cursor, told.live[-1].order_seq)
    told.say("assistant", "", "pending")
    reply = told.live[-1]
    told.say("user", "and another thing", "pending")
    unread = told.live[-1].order_seq
    view = (await told.history(cursor)).view(SETTINGS)
    view.unread = lambda: [unread]
    view.begin_turn(reply)
    view.drop_turns(drops)
    return assembled(view, reply)


def assembled(view: ViewBuilder, reply: MessageRecord) -> ViewManifest:
    tally = Tally()
    tally.show(view.messages)
    return assemble_manifest(
        RequestIdentity(RunId("r"), reply.id, 1, 1, "chat"),
        TapeState(SessionId("s"), "i", 10),
        choose_policy(),
        view,
        tally,
        Numbers(Preflight(None, 100, 10, 0)),
        RequestKind("p", "m", "g", "t"),
        None,
        view.messages,
    )


def folded(tape: list[TapeEntry]) -> tuple[dict[str, MessageRecord], set[str]]:
    """Return the messages on *tape* by their newest facts, and which are taken back."""
    found: dict[str, MessageRecord] = {}
    gone: set[str] = set()
    for entry in tape:
        if entry.fact.name == "message/recorded":
            record = msgspec.json.decode(entry.fact.payload, type=MessageRecord)
            found[record.id] = record
        if entry.fact.name == "message/retracted":
            gone.add(msgspec.json.decode(entry.fact.payload)["messageId"])
    return found, gone


def expected(told: Told, cursor: int, drops: int) -> dict[str, list[int]]:
    """Return the places of all messages of the tape by where each has to be."""
    page = told.peer.store.page(S1, 0, 1_000).entries
    messages, gone = folded(list(page))
    live = {m.order_seq for name, m in messages.items() if name not in gone}
    places: dict[str, list[int]] = {}
    starts: list[int] = []
    finished = [m for m in messages.values() if m.status != "pending"]
    asked = max(m.order_seq for m in finished if m.id not in gone)
    for name, message in sorted(messages.items(), key=lambda each: each[1].order_seq):
        order = message.order_seq
        if name in gone:
            where = "superseded" if order in live else "retracted"
        elif message.status == "pending":
            where = "pending_not_context_history"
        elif order < cursor:
            where = "before_summary_cursor"
        elif message.metadata.message_type == "compaction":
            where = "compaction_indicator"
        elif not message.blocks[0].text:  # type: ignore[union-attr] - they are texts
            where = "empty_after_formatting"
        else:
            where = "in"
            if order != asked and (message.role == "user" or not starts):
                starts.append(order)
        places.setdefault(where, []).append(order)
    first = starts[drops] if drops < len(starts) else asked
    shown = places.pop("in")
    places["out_of_budget"] = [order for order in shown if order < first]
    places["in"] = [order for order in shown if order >= first]
    return {where: sorted(orders) for where, orders in places.items() if orders}


def told_by(manifest: ViewManifest) -> dict[str, list[int]]:
    """Return what *manifest* says, in the same form."""
    places: dict[str, list[int]] = {}
    for each in manifest.excluded:
        covered = list(range(each.first, each.last + 1))
        more = each.count - len(covered)
        places.setdefault(each.reason, []).extend(covered + [-1] * more)
    out = {o for why, orders in places.items() if why != "superseded" for o in orders}
    shown = {
        order
        for part in manifest.included
        if part.orders is not None and part.reason != "pinned_first_user"
        for order in range(part.orders[0], part.orders[1] + 1)
    }
    places["in"] = list(shown - out)
    return {where: sorted(orders) for where, orders in places.items() if orders}


def agrees(told: dict[str, list[int]], wanted: dict[str, list[int]]) -> bool:
    """Whether both name the same places for the same reasons, and as many messages."""
    return told.keys() == wanted.keys() and all(
        set(told[why]) - {-1} == set(wanted[why]) and len(told[why]) == len(wanted[why])
        for why in told
    )


@pytest.mark.contract("CTX-05")
async def test_every_reason_is_told_and_nothing_is_left_untold():
    told = Told()
    for kind in ("turn", "turn", "turn"):
        told.turn(kind)
    told.take_back(2)
    for kind in ("turn", "empty", "compaction", "failed"):
        told.turn(kind)
    for _ in range(4):
        told.say("user", "more")
    told.take_back(4)
    manifest = await manifest_of(told, 3, 1)
    assert agrees(told_by(manifest), expected(told, 3, 1))
    by_reason = {
        why: [(e.first, e.last, e.count) for e in manifest.excluded if e.reason == why]
        for why in {e.reason for e in manifest.excluded}
    }
    assert by_reason == {
        "before_summary_cursor": [(1, 2, 2)],
        "out_of_budget": [(3, 4, 2)],
        "superseded": [(5, 6, 2), (13, 13, 1), (14, 14, 1), (15, 15, 1)],
        "empty_after_formatting": [(7, 7, 1)],
        "compaction_indicator": [(10, 10, 1)],
        "pending_not_context_history": [(14, 14, 1), (15, 15, 1)],
        "retracted": [(16, 16, 1)],
    }
    budget = manifest.token_budget
    assert (budget.context_length, budget.requested_max_tokens) == (None, 100)
    assert budget.effective_max_tokens == 100
    assert budget.estimated_prompt_tokens == 10
    assert (budget.reserve_tokens, budget.tool_reserve_tokens) == (0, 0)
    assert len(manifest.hashes.prompt_hash) == 64
    assert manifest.hashes.tool_definitions_hash == "t"


@pytest.mark.contract("CTX-05")
@budget(max_examples=60)
@given(STEPS, st.integers(1, 14), st.integers(0, 3))
async def test_what_is_in_and_what_is_out_are_all_messages_of_the_tape(
    steps, cursor, drops
):
    told = Told()
    for step in steps:
        if isinstance(step, int):
            told.take_back(step)
        else:
            told.turn(step)
    manifest = await manifest_of(told, cursor, drops)
    asked = told.live[-3].order_seq
    wanted = expected(told, min(cursor, asked), drops)
    assert agrees(told_by(manifest), wanted)


async def test_a_rewind_is_told_by_who_did_it_and_by_who_loads_it(tmp_path):
    async with open_stage(tmp_path, replies(*[[Say("done"), Halt()]] * 5)) as stage:
        for said in ("one", "two", "three"):
            await stage.session.prompt(said, command_id=said)
        await stage.session.rewind((await stage.session.messages())[1].id)
        await stage.session.prompt("other")
        await stage.session.close()
        # What was taken back is not said again by whoever sends it once more.
        with pytest.raises(GreenroomError, match="taken back"):
            await stage.session.prompt("three", command_id="three")
        await stage.session.prompt("more")
        first, second = (
            [(e.first, e.last, e.count, e.reason) for e in stored.manifest.excluded]
            for stored in manifests_of(stage.tape())[-2:]
        )
    placeholder = "pending_not_context_history"
    assert first == [
        (3, 3, 1, "superseded"),
        (4, 4, 1, "superseded"),
        (4, 4, 1, placeholder),
        (5, 6, 2, "retracted"),
    ]
    assert second == [
        (3, 5, 3, "superseded"),
        (6, 6, 1, "superseded"),
        (6, 6, 1, placeholder),
    ]
