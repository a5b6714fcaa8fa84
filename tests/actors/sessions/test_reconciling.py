"""An operation in doubt: its tool is asked before the model is told anything."""

from __future__ import annotations

from typing import Any

import apsw
import attrs
import pytest
import trio
from kit.aftermath import problems
from kit.rehearsal import calls_of, read_tape
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.engine import Grant, Operation, ToolResult, tool
from greenroom.protocol import (
    DispatchCommitted,
    GreenroomError,
    ToolMessage,
    ToolOutcome,
    journal_record,
)
from greenroom.storage import OPERATION_RECONCILED
from greenroom.testing import (
    Call,
    Halt,
    RehearsalProvider,
    Say,
    crash_disk,
    open_test_engine,
)

DONE = [Say("done"), Halt()]
HONEST = "it is not known whether this call ran"


@attrs.define(eq=False)
class World:
    """The outside: what was shipped, under which key, and who asked about it."""

    shipped: list[str] = attrs.field(factory=list)
    asked: list = attrs.field(factory=list)
    crash: Any = None
    knows: Any = None

    def tool(self, *, reconciles=True, permission=None):
        async def find_out(doubt):
            self.asked.append(doubt)
            return await self.knows(doubt)

        @tool(
            name="ship",
            permission=permission,
            reconcile=find_out if reconciles else None,
        )
        async def ship(operation: Operation, fruit: str) -> str:
            await operation.dispatch()
            self.shipped.append(operation.idempotency_key)
            if self.crash is not None:
                self.crash()
            return "shipped"

        return ship


async def by_key(doubt):
    return f"shipped under {doubt.idempotency_key}"


async def not_known(doubt):
    return None


async def raises(doubt):
    raise ValueError("no")


async def is_late(doubt):
    await trio.sleep_forever()


async def never_ends(doubt):
    with trio.CancelScope(shield=True):
        await trio.sleep(1_000)


async def says_nothing_usable(doubt):
    return ToolResult("shipped", locations=("no place",))  # pyright: ignore[reportArgumentType] - junk on purpose


async def in_unsafe_text(doubt):
    return ToolResult("shipped", title="a\x00b\ud800")


def crashed(tmp_path, world, *, rounds=1, permission=None):
    """Let the machine die between the effect of a call and its outcome."""
    found = []
    script = [
        [Call("ship", {"fruit": "pear"}, id=f"call{n}"), Halt("tool_use")]
        for n in range(rounds)
    ]

    async def main():
        provider = RehearsalProvider(script)
        async with open_test_engine(
            tmp_path, provider, world.tool(permission=permission), seed=1
        ) as engine:
            session = await engine.create_session(workspace=tmp_path)
            found.append(session.id)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.prompt, "go")
                if permission:
                    for _ in range(rounds):
                        await wait_all_tasks_blocked()
                        (asked,) = await session.interactions()
                        await session.answer(asked.id, Grant())

    with crash_disk() as disk:
        world.crash = lambda: disk.crash() if len(world.shipped) == rounds else None
        with pytest.raises((GreenroomError, apsw.Error, ExceptionGroup)):
            trio.run(main)
    disk.restore()
    world.crash = None
    return found[0]


def reloaded(tmp_path, session_id, *tools, clock=None):
    """Load the session, say one thing, and return its tape, call and request."""
    provider = RehearsalProvider([DONE])
    got = {}

    async def main():
        async with open_test_engine(tmp_path, provider, *tools, seed=2) as engine:
            session = await engine.open_session(session_id)
            (message,) = [m for m in await session.messages() if m.role == "assistant"]
            got["call"] = calls_of(message)[-1]
            await session.prompt("and?")

    trio.run(main, clock=clock)
    got["told"] = [
        m for m in provider.requests[0].messages if isinstance(m, ToolMessage)
    ]
    got["tape"] = read_tape(tmp_path / "state", session_id)
    return got


def outcomes(tape):
    records = [journal_record(e.fact) for e in tape if e.fact.is_execution]
    return (
        [r for r in records if isinstance(r, DispatchCommitted)],
        [r for r in records if isinstance(r, ToolOutcome)],
    )


@pytest.mark.parametrize(
    ("rounds", "permission"), [(1, None), (2, None), (1, "?"), (2, "?")]
)
def test_what_the_tool_knows_becomes_the_result_and_nothing_runs_again(
    tmp_path, rounds, permission
):
    world = World(knows=by_key)
    session_id = crashed(tmp_path, world, rounds=rounds, permission=permission)
    got = reloaded(tmp_path, session_id, world.tool())
    # In another process the key is the same, and the effect happened once.
    assert len(world.shipped) == rounds
    (doubt,) = world.asked
    assert doubt.idempotency_key == world.shipped[-1]
    assert doubt.arguments == {"fruit": "pear"}
    assert got["call"].response == f"shipped under {world.shipped[-1]}"
    assert got["call"].status == "success"
    assert got["call"].in_doubt is None
    assert got["told"][-1].text == got["call"].response
    assert not got["told"][-1].is_error
    # Said by an ordinary fact; the journal stays as the crash left it.
    names = [e.fact.name for e in got["tape"]]
    assert names.count(OPERATION_RECONCILED) == 1
    dispatched, known = outcomes(got["tape"])
    assert len(dispatched) == len(known) + 1 == rounds
    assert problems(tmp_path / "state") == []


@pytest.mark.parametrize(
    "knows", [not_known, raises, is_late, never_ends, says_nothing_usable]
)
def test_what_is_not_known_stays_in_doubt_within_a_bound(tmp_path, knows):
    world, clock = World(knows=knows), MockClock(autojump_threshold=0)
    session_id = crashed(tmp_path, world)
    got = reloaded(tmp_path, session_id, world.tool(), clock=clock)
    assert len(world.asked) == 1
    assert HONEST in got["call"].response
    assert got["told"][0].is_error
    assert HONEST in got["told"][0].text
    assert OPERATION_RECONCILED not in [e.fact.name for e in got["tape"]]
    assert len(world.shipped) == 1


def test_what_a_tool_knows_is_stored_in_safe_text(tmp_path):
    world = World(knows=in_unsafe_text)
    session_id = crashed(tmp_path, world)
    got = reloaded(tmp_path, session_id, world.tool())
    assert (got["call"].response, got["call"].title) == ("shipped", "a\ufffdb\ufffd")


def test_a_tool_that_is_gone_or_can_not_tell_is_not_asked(tmp_path):
    world = World(knows=by_key)
    session_id = crashed(tmp_path, world)
    got = reloaded(tmp_path, session_id, world.tool(reconciles=False))
    assert world.asked == []
    assert HONEST in got["told"][0].text


def test_what_the_model_was_told_is_not_changed_any_more(tmp_path):
    world = World(knows=not_known)
    session_id = crashed(tmp_path, world)
    reloaded(tmp_path, session_id, world.tool())
    world.knows = by_key
    world.asked.clear()

    async def again():
        provider = RehearsalProvider([DONE])
        async with open_test_engine(tmp_path, provider, world.tool(), seed=3) as engine:
            session = await engine.open_session(session_id)
            await session.prompt("and now?")
            assert HONEST in repr(provider.requests[0].messages)

    trio.run(again)
    assert world.asked == []
