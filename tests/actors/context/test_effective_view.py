"""What a tape comes to: of each message and each call the newest that counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings as budget, strategies as st
from kit.compacting import SETTINGS
from kit.stores import S1, MemoryWorld, SqliteWorld, World

from greenroom.actors.sessions._earlier import Earlier
from greenroom.actors.sessions._history import History
from greenroom.protocol import (
    Fact,
    ItemId,
    MessageId,
    MessageMetadata,
    MessageRecord,
    TapeEntry,
    TextBlock,
    TextPart,
    ToolCallBlock,
    ToolMessage,
    UserMessage,
)
from greenroom.storage import (
    Reader,
    message_fact,
    recall_entries,
    retraction_fact,
    tool_facts,
    verify,
)

NAMES = st.integers(1, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(NAMES, st.sampled_from(["pending", "sent", "error"])),
        st.tuples(NAMES, st.just("retract")),
    ),
    min_size=2,
    max_size=14,
)


def revision(order: int, status: Any, number: int) -> MessageRecord:
    """Revision *number* of a message: the user's at odd places, else with two calls."""
    name, blocks = f"m{order}", list[Any]()
    if order % 2:
        blocks.append(TextBlock(id=ItemId(f"{name}.0"), text=f"{name} at {number}"))
    for call in () if order % 2 else (1, 2):
        blocks.append(
            ToolCallBlock(
                id=ItemId(f"{name}.{call}"),
                call_id=f"call-{call}",
                name="look",
                arguments="{}",
                round=call,
                status="success",
                response=f"{name}, {call} at {number}",
            )
        )
    return MessageRecord(
        id=MessageId(name),
        order_seq=order,
        role="user" if order % 2 else "assistant",
        status=status,
        blocks=tuple(blocks),
        metadata=MessageMetadata(provider="p", model="m"),
        created_at=0.0,
        updated_at=float(number),
    )


def facts_of(record: MessageRecord) -> list[Fact]:
    calls = [block for block in record.blocks if isinstance(block, ToolCallBlock)]
    made = [fact for block in calls for fact in tool_facts(record.id, block)]
    return [message_fact(record), *made]


class Model:
    """The effective view, folded the way the row has it: ranks, then what is last."""

    def __init__(self, entries: list[TapeEntry]) -> None:
        ranks = {"sent": 2, "error": 2, "pending": 1}
        newest: dict[str, tuple[int, MessageRecord]] = {}
        gone: set[str] = set()
        self.calls: dict[tuple[str, str, str], str] = {}
        for entry in entries:
            fact, payload = entry.fact, msgspec.json.decode(entry.fact.payload or "{}")
            if fact.name == "message/recorded":
                record = msgspec.json.decode(fact.payload, type=MessageRecord)
                rank = ranks[record.status]
                if record.id not in gone and rank >= newest.get(record.id, (0,))[0]:
                    newest[record.id] = rank, record
            elif fact.name == "message/retracted":
                gone.update({payload["messageId"]} & newest.keys())
            elif fact.kind in ("tool_call", "tool_result"):
                key = str(fact.kind), payload["messageId"], payload["toolCallId"]
                self.calls[key] = fact.payload
        kept = [each for name, each in newest.items() if name not in gone]
        kept.sort(key=lambda each: each[1].order_seq)
        self.asked_for = [record for _, record in kept]
        self.plain = [record for rank, record in kept if rank == 2]
        order = {record.id: record.order_seq for record in self.asked_for}
        inherited = sorted(
            (key for key in self.calls if key[1] in order),
            key=lambda key: (order[MessageId(key[1])], key[2], key[0]),
        )
        self.calls = {key: self.calls[key] for key in inherited}


@contextmanager
def world_of(kind: str) -> Iterator[World]:
    if kind == "memory":
        yield MemoryWorld()
        return
    with TemporaryDirectory() as folder:
        world = SqliteWorld(Path(folder))
        yield world
        world.close()


def recalled(reader: Reader, head: int) -> set[str]:
    """The calls and results that a model can read again, by what is in them."""
    found = recall_entries(reader, S1, range(1, head + 1))
    return {each.text for each in found if each.what in ("tool_call", "tool_result")}


async def view_of(reader: Reader) -> tuple[list[str], list[str]]:
    """What the user said in a request, and what tools returned, in order."""

    async def read(before: int | None) -> Earlier:
        return Earlier(reader.messages(S1), reader.retracted_messages(S1))

    history = History([], read)
    await history.complete()
    said, returned = list[str](), list[str]()
    for message in history.view(SETTINGS).messages:
        if isinstance(message, ToolMessage):
            returned.append(message.text)
        if isinstance(message, UserMessage):
            said += [p.text for p in message.parts if isinstance(p, TextPart)]
    return said, returned


@pytest.mark.contract("TAP-09")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@budget(max_examples=25)
@given(steps=STEPS)
async def test_what_counts_of_a_tape_is_what_a_fold_of_it_gives(kind, steps):
    with world_of(kind) as world:
        peer = world.join()
        tape = peer.tape()
        finished = set[int]()
        for number, (order, what) in enumerate(steps):
            facts = [retraction_fact(MessageId(f"m{order}"))]
            if what != "retract":
                facts = facts_of(revision(order, what, number))
                # A revision that is outranked says of its calls nothing.
                outranked = what == "pending" and order in finished
                facts = facts[:1] if outranked else facts
                finished |= {order} if what != "pending" else set()
            tape.append_piece(facts, now=1.0).run(peer.store)
        model = Model(list(peer.store.page(S1, 0, 1_000).entries))

        assert peer.store.messages(S1) == model.asked_for
        said, returned = await view_of(peer.store)
        assert said == [
            b.text for m in model.plain for b in m.blocks if isinstance(b, TextBlock)
        ]
        results = [
            msgspec.json.decode(payload)["response"]
            for (kind, name, _), payload in model.calls.items()
            if kind == "tool_result" and name in {m.id for m in model.plain}
        ]
        assert returned == results
        texts = {
            f"{told['name']}\n{told.get('arguments') or told.get('response')}"
            for told in map(msgspec.json.decode, model.calls.values())
        }
        assert recalled(peer.store, tape.head) == texts
        assert verify(peer.store) == []
