"""Opening a session reads one page; a run reads the rest, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import apsw
import attrs
import pytest
import trio
from kit.compacting import record
from kit.rehearsal import Probe, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.kernel import FixedClock, SeededIds
from greenroom.actors.providers import Call, Halt, RehearsalProvider, Say
from greenroom.actors.sessions._earlier import Earlier
from greenroom.actors.sessions._history import History
from greenroom.engine import Grant, TurnRefusedError, open_engine
from greenroom.protocol import Spent, UserMessage
from greenroom.storage import SqliteStore, open_store

EPOCH = 1_767_225_600.0
DONE = [Say("done"), Halt()]
ASK = [Call("probe", {"n": 1}), Halt("tool_use")]

# Copies of the answer and of its block, in turn said by the user and by the model.
COPY = """
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
INSERT INTO message (session, name, order_seq, role, status, metadata, created_at,
    updated_at, open, retracted, blocks)
SELECT session, 'copy-' || i, order_seq + i, iif(i % 2, 'user', 'assistant'), status,
    metadata, created_at, updated_at, open, retracted, blocks
FROM n, (SELECT * FROM message ORDER BY id DESC LIMIT 1);
"""
COPY_BLOCKS = """
INSERT INTO block SELECT m.id, b.position, b.name, b.waits, b.body
FROM message m, (SELECT * FROM block ORDER BY message DESC LIMIT 1) b
WHERE m.name LIKE 'copy-%' AND m.id > (SELECT max(message) FROM block);
"""


@attrs.define(eq=False)
class Cost:
    """What the statements of a stretch of work cost."""

    statements: list[str] = attrs.field(factory=list)
    steps: int = 0

    def add(self, told: dict[str, Any]) -> None:
        status = told["stmt_status"]
        assert status["SQLITE_STMTSTATUS_FULLSCAN_STEP"] < 10, told["sql"]
        self.statements.append(told["sql"])
        self.steps += status["SQLITE_STMTSTATUS_VM_STEP"]


@contextmanager
def counted(store: SqliteStore) -> Iterator[Cost]:
    cost = Cost()
    store.connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, cost.add)
    yield cost
    store.connection.trace_v2(0, None)


@asynccontextmanager
async def engine_on(store, provider, *tools, seed=0):
    async with open_engine(
        store=store,
        provider=provider,
        tools=tools,
        builtin=False,
        clock=FixedClock(EPOCH),
        ids=SeededIds(seed),
        gc_thresholds=False,
    ) as engine:
        yield engine


@pytest.fixture
def store(tmp_path):
    made = open_store(tmp_path / "state")
    yield made
    made.close()


async def grown(store, tmp_path, more: int) -> str:
    """Make a session of one turn and *more* copies of its answer."""
    async with engine_on(store, RehearsalProvider(replies(DONE))) as engine:
        session = await engine.create_session(workspace=tmp_path)
        await session.prompt("hello")
    store.connection.execute(COPY, (more,))
    store.connection.execute(COPY_BLOCKS)
    store.connection.execute("UPDATE session_info SET messages = messages + ?", (more,))
    return session.id


async def opening(store, tmp_path, more: int) -> Cost:
    session_id = await grown(store, tmp_path, more)
    provider = RehearsalProvider(replies())
    async with engine_on(store, provider, seed=1) as engine:
        with counted(store) as cost:
            await engine.open_session(session_id)
    return cost


@pytest.mark.slow
@pytest.mark.contract("PER-06")
async def test_opening_costs_the_same_with_fifty_thousand_messages(tmp_path):
    costs: list[Cost] = []
    for more in (10, 50_000):
        store = open_store(tmp_path / f"state-{more}")
        costs.append(await opening(store, tmp_path, more))
        store.close()
    few, many = costs
    assert many.statements == few.statements
    assert many.steps <= few.steps * 1.1


async def test_a_run_of_a_session_that_was_loaded_sends_all_of_it(store, tmp_path):
    session_id = await grown(store, tmp_path, 8)
    provider = RehearsalProvider(replies(DONE, DONE))
    async with engine_on(store, provider, seed=1) as engine:
        session = await engine.open_session(session_id)
        await session.prompt("again")
        with counted(store) as cost:
            await session.prompt("and again")
    # hello and done, eight copies, again; then done, and again.
    assert [len(request.messages) for request in provider.requests] == [11, 13]
    assert not [sql for sql in cost.statements if "order_seq < ?" in sql]
    assert isinstance(provider.requests[0].messages[0], UserMessage)


async def test_an_answer_after_a_restart_goes_on_with_all_of_it(store, tmp_path):
    session_id = await grown(store, tmp_path, 6)
    probe = Probe(permission="do it")
    async with engine_on(store, RehearsalProvider(replies(ASK)), probe, seed=1) as one:
        session = await one.open_session(session_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt_until_closed, session)
            await wait_all_tasks_blocked()
            (asked,) = await session.interactions()
            nursery.cancel_scope.cancel()
    provider = RehearsalProvider(replies(DONE))
    async with engine_on(store, provider, probe, seed=2) as other:
        session = await other.open_session(session_id)
        await session.answer(asked.id, Grant())
        await wait_all_tasks_blocked()
        assert (await session.messages())[-1].status == "sent"
    # hello and done, six copies, go; then the call and its result.
    (request,) = provider.requests
    assert len(request.messages) == 9 + 2


async def prompt_until_closed(session):
    await session.prompt("go")


async def test_an_old_command_sent_again_is_known_by_its_first_answer(store, tmp_path):
    session_id = await grown(store, tmp_path, 6)
    async with engine_on(store, RehearsalProvider(replies(DONE)), seed=1) as engine:
        session = engine.session(session_id)
        first = (await session.messages(limit=500))[0]
        assert (await session.prompt("hello", command_id=first.id)).text == "done"
        with pytest.raises(TurnRefusedError):
            await session.prompt("other", command_id=first.id)


async def test_two_that_ask_for_the_whole_at_a_time_get_it_once():
    gate, old, new = trio.Event(), record(1, "old"), record(2, "new")

    async def read(_: int | None) -> Earlier:
        await gate.wait()
        return Earlier([old], [], Spent(tokens=5))

    history = History([new], read)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(history.complete)
        await wait_all_tasks_blocked()
        gate.set()
    assert history.records == (old, new)
    assert history.account.spent.tokens == 5
