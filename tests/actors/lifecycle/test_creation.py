"""A session is made in one order, and what fails on the way leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import pytest
import trio
from kit.determinism import deterministic
from trio.testing import MockClock

from greenroom.actors.agents import AgentManager
from greenroom.actors.lifecycle._deletion import Deletion
from greenroom.actors.sessions import SessionHandle, Sessions
from greenroom.actors.writer import InlineWriter
from greenroom.engine import Engine, TurnRefusedError
from greenroom.protocol import DiskFullError, StorageError
from greenroom.storage import Settled
from greenroom.testing import (
    Halt,
    Hang,
    RehearsalProvider,
    Say,
    open_test_engine,
)

DONE: Final = [Say("done"), Halt()]
LONG: Final = "  Once upon a time there was a very long first prompt, and it went on"
TABLES: Final = ("session_info", "fact", "message", "command", "binding")


@attrs.define(eq=False)
class Failing:
    """A writer whose n-th piece from now fails."""

    at: int
    count: int = 0

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        inner = InlineWriter.submit

        async def submit(writer: Any, piece: Any, told: Any = None) -> Any:
            self.count += 1
            if self.count == self.at:
                await trio.lowlevel.checkpoint()
                raise DiskFullError(f"at piece {self.at}")
            return await inner(writer, piece, told)

        inner_soon = InlineWriter.submit_soon

        def submit_soon(writer: Any, piece: Any, settled: Any) -> None:
            self.count += 1
            if self.count == self.at:
                settled(Settled(error=DiskFullError(f"at piece {self.at}")))
                return
            inner_soon(writer, piece, settled)

        monkeypatch.setattr(InlineWriter, "submit", submit)
        monkeypatch.setattr(InlineWriter, "submit_soon", submit_soon)


def rows_of(engine: Engine) -> dict[str, int]:
    store: Any = engine._world.readers._reader  # type: ignore[attr-defined]
    count = store.connection.execute
    return {t: count(f"SELECT count(*) FROM {t}").get for t in TABLES}


def nothing_is_left(engine: Engine) -> None:
    assert rows_of(engine) == dict.fromkeys(TABLES, 0)
    # An id stays used, so that no owner of before may come back; nobody owns it.
    store: Any = engine._world.readers._reader  # type: ignore[attr-defined]
    sql = "SELECT count(*) FROM session WHERE head <> 0 OR owner IS NOT NULL"
    assert store.connection.execute(sql).get == 0
    alive = [i.path for i in engine.tree() if i.path.startswith("sessions/")]
    assert alive == ["sessions/watchdog"]
    assert engine._sessions._loaded == engine._sessions._hubs == {}


async def create(engine: Engine, tmp_path: Any, **more: Any) -> SessionHandle:
    async def bind(session: SessionHandle) -> None:
        await engine.bindings.bind("client", session.id)

    return await engine.create_session(
        workspace=tmp_path, prompt=LONG, command_id="first", bind=bind, **more
    )


@pytest.mark.contract("SES-12")
async def test_whatever_write_fails_no_row_tape_or_binding_is_left(
    tmp_path, monkeypatch
):
    failed = []
    async with open_test_engine(tmp_path, RehearsalProvider([DONE] * 40)) as engine:
        for at in range(1, 40):
            failing = Failing(at)
            with monkeypatch.context() as patch:
                failing.patch(patch)
                try:
                    session = await create(engine, tmp_path)
                except StorageError:
                    failed.append(at)
                    nothing_is_left(engine)
                    continue
            # It was taken in, so whatever fails now is its turn's affair.
            assert [row.id for row in await engine.sessions()] == [session.id]
            await engine.delete_session(session.id)
            nothing_is_left(engine)
            if failing.count < at:
                break
    # The grant, what a session begins with, the command; a binding that can't be
    # written keeps nobody from anything (SES-08).
    assert failed[:3] == [1, 2, 5]


@pytest.mark.contract("SES-12")
async def test_a_binding_or_a_first_prompt_that_is_refused_leaves_nothing(
    tmp_path,
):
    async def refuse(session: SessionHandle) -> None:
        raise RuntimeError("no more clients")

    async with open_test_engine(tmp_path, RehearsalProvider([])) as engine:
        with pytest.raises(RuntimeError, match="no more clients"):
            await engine.create_session(workspace=tmp_path, bind=refuse)
        nothing_is_left(engine)
        with pytest.raises(TurnRefusedError) as refused:
            await engine.create_session(workspace=tmp_path, prompt="  ")
        assert refused.value.code == "empty_message"
        nothing_is_left(engine)


@attrs.define(eq=False)
class AtStep(trio.abc.Instrument):
    """Does something before the n-th step of any task from now."""

    step: int
    act: Callable[[], object]
    steps: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.steps == self.step:
            self.act()


@pytest.mark.contract("SES-12")
async def test_given_up_at_any_step_there_is_the_session_or_nothing(
    tmp_path, autojump_clock: MockClock
):
    provider = RehearsalProvider([[Hang()]] * 99)
    gone = 0
    with deterministic(0):
        async with open_test_engine(tmp_path, provider) as engine:
            for step in range(1, 90):
                made: list[SessionHandle] = []
                with trio.CancelScope() as scope:
                    instrument = AtStep(step, scope.cancel)
                    trio.lowlevel.add_instrument(instrument)
                    try:
                        made.append(await create(engine, tmp_path))
                    finally:
                        trio.lowlevel.remove_instrument(instrument)
                rows = await engine.sessions()
                if not rows:
                    gone += 1
                    nothing_is_left(engine)
                    continue
                # What is kept has its message: it was taken in before.
                waits = await engine.session(rows[0].id).inputs()
                assert waits or rows[0].message_count
                await engine.delete_session(rows[0].id)
                if made and not scope.cancelled_caught:
                    break
    assert gone >= 3


async def test_what_takes_too_long_to_undo_is_told(
    tmp_path, monkeypatch, caplog, autojump_clock
):
    async def hang(*_: Any) -> None:
        await trio.sleep_forever()

    async def refuse(_: SessionHandle) -> None:
        raise DiskFullError("no room for a binding")

    monkeypatch.setattr(Deletion, "delete", hang)
    async with open_test_engine(tmp_path, RehearsalProvider([DONE])) as engine:
        with pytest.raises(DiskFullError):
            await engine.create_session(workspace=tmp_path, bind=refuse)
        (row,) = await engine.sessions()
    (told,) = [r for r in caplog.records if r.name == "greenroom.lifecycle"]
    assert "was not undone: it took more than 10 s" in told.getMessage()
    assert told.session_id == row.id


@pytest.mark.contract("SES-12")
async def test_the_steps_have_one_order(tmp_path, monkeypatch):
    log: list[str] = []

    def noting(owner: Any, name: str, what: str) -> None:
        inner = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            log.append(what)
            return inner(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    noting(AgentManager, "select", "assignment")
    noting(AgentManager, "create_session", "agent gate")
    noting(Sessions, "acquire", "row")
    noting(Sessions, "_start", "runtime")
    noting(SessionHandle, "submit", "first turn")
    provider = RehearsalProvider([DONE])
    async with open_test_engine(tmp_path, provider) as engine:

        async def bind(session: SessionHandle) -> None:
            log.append("bind")
            assert rows_of(engine)["message"] == 0

        session = await engine.create_session(
            workspace=tmp_path, prompt=LONG, command_id="first", bind=bind
        )
        assert log == [
            "assignment",
            "agent gate",
            "row",
            "runtime",
            "bind",
            "first turn",
        ]
        turn = await session.prompt(LONG, command_id="first")
        assert (turn.text, len(provider.requests)) == ("done", 1)


@pytest.mark.contract("SES-12")
@pytest.mark.parametrize(
    ("given", "title"),
    [
        ({"prompt": LONG}, "Once upon a time there was a very long first promp"),
        ({"prompt": LONG, "title": " mine "}, "mine"),
        ({}, "New Chat"),
    ],
)
async def test_a_session_is_called_by_what_was_said_first(tmp_path, given, title):
    async with open_test_engine(tmp_path, RehearsalProvider([DONE])) as engine:
        await engine.create_session(workspace=tmp_path, **given)
        (row,) = await engine.sessions()
        assert row.settings.title == title


@pytest.mark.contract("SES-12")
async def test_a_draft_is_one_until_something_is_taken_in(tmp_path):
    async with open_test_engine(tmp_path, RehearsalProvider([DONE])) as engine:
        theirs = await engine.agents.create("theirs")
        draft = await engine.create_session(workspace=tmp_path)
        with pytest.raises(TurnRefusedError):
            await draft.prompt("")
        assert (await engine.assess_move("default")).deleted == 1
        await draft.prompt("go")
        moved = await engine.assess_move("default")
        assert (moved.moved, moved.deleted) == (1, 0)
        assert theirs
