"""A turn against a session that does what a test wants, when it wants it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.context import Compacted
from greenroom.actors.endpoints._acp_turn import AcpTurn
from greenroom.actors.sessions import TurnResult
from greenroom.protocol import (
    ActionBlock,
    Event,
    Grant,
    InteractionError,
    ItemId,
    MessageId,
    MessageMetadata,
    MessageRecord,
    MessagesChanged,
    SessionId,
    SessionSettings,
    StatusChanged,
    StorageError,
    StreamCompleted,
    TextPart,
    ToolCallBlock,
)
from greenroom.protocol.acp import v1
from greenroom.protocol.jsonrpc import Response, encode_json

SESSION = SessionId("s")
SETTINGS = SessionSettings(
    agent_id="default", title="t", workspace="/work", provider="p", model="m"
)


def record(status: Any = "pending", *blocks: Any, **metadata: Any) -> MessageRecord:
    return MessageRecord(
        id=MessageId("m"),
        order_seq=2,
        role="assistant",
        status=status,
        blocks=blocks,
        metadata=MessageMetadata(**metadata),
        created_at=0.0,
        updated_at=0.0,
    )


def ended(outcome: Any, reason: str, *blocks: Any) -> MessageRecord:
    return record("sent", *blocks, run_outcome=outcome, run_stop_reason=reason)


GENERATING = StatusChanged(session_id=SESSION, version=1, state="generating")


@attrs.define(eq=False)
class FakeSession:
    """Everything that the turn asks of it is noted; the test decides what follows."""

    id: SessionId = SESSION
    settings: SessionSettings | None = SETTINGS
    did: list[str] = attrs.field(factory=list)
    cancelled: trio.Event = attrs.field(factory=trio.Event)
    prompted: trio.Event = attrs.field(factory=trio.Event)
    result: TurnResult | Exception | None = None
    done: trio.Event = attrs.field(factory=trio.Event)
    refuse_answer: Exception | None = None
    refuse_follow: Exception | None = None
    _events: Any = attrs.field(factory=lambda: trio.open_memory_channel(100))

    def tell(self, *events: Event) -> None:
        for event in events:
            self._events[0].send_nowait(event)

    def end(self, result: MessageRecord | Exception) -> None:
        is_error = isinstance(result, Exception)
        self.result = result if is_error else TurnResult(result)
        self.done.set()

    async def prompt(
        self, content: Any, *, detached: bool = False, endpoint: str = ""
    ) -> TurnResult:
        assert endpoint == "acp"
        self.did.append("prompt")
        self.prompted.set()
        await self.done.wait()
        if isinstance(self.result, Exception):
            raise self.result
        assert self.result is not None
        return self.result

    async def answer(self, interaction_id: str, answer: Any) -> None:
        self.did.append(f"answer {interaction_id} {type(answer).__name__}")
        if self.refuse_answer is not None:
            raise self.refuse_answer

    async def configure(self, **changes: Any) -> SessionSettings:
        await trio.lowlevel.checkpoint()
        self.did.append(f"configure {changes}")
        return SETTINGS

    async def compact(self, focus: str = "") -> Compacted:
        raise NotImplementedError

    async def cancel(self) -> None:
        self.did.append("cancel")
        self.cancelled.set()

    @asynccontextmanager
    async def follow(self, *, after: int | None = None) -> AsyncIterator[Any]:
        if self.refuse_follow is not None:
            raise self.refuse_follow
        yield self._events[1]


@attrs.define(eq=False)
class FakeClient:
    updates: list[Any] = attrs.field(factory=list)

    def update(self, session_id: str, update: Any) -> None:
        self.updates.append(update)

    async def ask(self, method: str, params: Any) -> Response:
        chosen = {"outcome": {"outcome": "selected", "optionId": "allow"}}
        return Response(0, msgspec.Raw(encode_json(chosen)))


def make(**fields: Any) -> tuple[AcpTurn, Any, FakeClient]:
    session, client = FakeSession(**fields), FakeClient()
    narration = v1.Narration(SETTINGS)
    turn = AcpTurn(session, client, (TextPart("go"),), narration)  # type: ignore[arg-type]
    return turn, session, client


@asynccontextmanager
async def running(turn: AcpTurn) -> AsyncIterator[list[Any]]:
    """Run a turn beside the test; what comes of it is put into the list."""
    told: list[Any] = []

    async def run() -> None:
        try:
            told.append(await turn.run())
        except Exception as exc:
            told.append(exc)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield told


def completed(message: MessageRecord) -> StreamCompleted:
    return StreamCompleted(session_id=SESSION, seq=1, message=message)


CALL = ToolCallBlock(id=ItemId("m.0"), call_id="c", name="write", arguments="{}")
ASKS = ActionBlock(
    id=ItemId("m.1"),
    action="tool_call_permission",
    origin="pre-check-permission",
    tool_block_id=ItemId("m.0"),
    title="write",
)


#### Stops


async def test_a_stop_that_came_too_early_is_tried_again_when_the_session_works():
    turn, session, _ = make()
    async with running(turn) as told:
        await session.prompted.wait()
        turn.cancel()
        await wait_all_tasks_blocked()
        assert session.did == ["prompt", "cancel"]

        session.tell(GENERATING)
        await wait_all_tasks_blocked()
        assert session.did == ["prompt", "cancel", "cancel"]
        aborted = ended("aborted", "user_stop")
        session.end(aborted)
        session.tell(completed(aborted))
    assert told == ["cancelled"]


async def test_a_turn_that_was_stopped_before_it_began_prompts_nothing():
    turn, session, _ = make()
    turn.cancel()
    async with running(turn) as told:
        pass
    assert told == ["cancelled"]
    assert "prompt" not in session.did


async def test_a_turn_whose_client_has_left_names_its_session_before_it_ends():
    turn, session, _ = make()
    turn.title = "go"
    turn.leave()
    session.end(ended("completed", "complete"))
    async with running(turn) as told:
        await wait_all_tasks_blocked()
        assert told == ["end_turn"]
    assert session.did == ["prompt", "configure {'title': 'go'}"]


@pytest.mark.parametrize(
    "end", [ended("completed", "complete"), StorageError("the disk is gone")]
)
async def test_a_stop_that_was_wanted_is_the_answer_whatever_came_of_it(end):
    turn, session, _ = make()
    async with running(turn) as told:
        await session.prompted.wait()
        turn.cancel()
        session.end(end)
        session.tell(completed(record()))
    assert told == ["cancelled"]


#### Ends


async def test_a_last_event_that_never_comes_is_made_up_for(autojump_clock):
    turn, session, client = make()
    done = msgspec.structs.replace(CALL, status="success", response="written")
    async with running(turn) as told:
        session.end(ended("completed", "complete", done))
    assert told == ["end_turn"]
    (made_up,) = client.updates
    assert made_up.status == "completed"


@pytest.mark.parametrize("where", ["prompt", "follow", "answer"])
async def test_a_fault_is_raised_as_itself_and_ends_the_calls(where):
    fault = StorageError("the disk is gone")
    turn, session, client = make()
    if where == "follow":
        session.refuse_follow = fault
    if where == "answer":
        session.refuse_answer = fault
    waits = msgspec.structs.replace(CALL, status="success", response="")
    stored = MessagesChanged(
        session_id=SESSION, seq=1, message=record("pending", waits, ASKS)
    )
    async with running(turn) as told:
        session.tell(stored)
        await wait_all_tasks_blocked()
        if where == "prompt":
            session.end(fault)
    assert told == [fault]
    assert session.did[-1] == "cancel"
    ends = [u.status for u in client.updates if u.status in ("completed", "failed")]
    assert ends == ([] if where == "follow" else ["failed"])


@pytest.mark.parametrize("code", ["already_answered", "unknown_interaction"])
async def test_an_answer_that_comes_too_late_is_no_fault(code):
    turn, session, _ = make(refuse_answer=InteractionError(code, "m.1", "too late"))
    async with running(turn) as told:
        session.tell(
            MessagesChanged(
                session_id=SESSION, seq=1, message=record("pending", CALL, ASKS)
            )
        )
        await wait_all_tasks_blocked()
        assert session.did[-1] == f"answer m.1 {Grant.__name__}"
        done = ended("completed", "complete")
        session.end(done)
        session.tell(completed(done))
    assert told == ["end_turn"]
