"""A session's status: whatever ends a turn, nobody is left to see it generating."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import attrs
import pytest
import trio
from kit.rehearsal import Probe, Stage, open_stage, replies, spy_on
from kit.run_ports import change_run_ports
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.kernel import CancelCause
from greenroom.protocol import (
    Deny,
    DiskFullError,
    GreenroomError,
    Snapshot,
    StatusChanged,
    newest_status,
)
from greenroom.testing import (
    Call,
    End,
    Fail,
    Halt,
    Hang,
    Raise,
    RehearsalProvider,
    Say,
    open_test_engine,
)

BOUND: Final = 10.0
"""Seconds from whatever ends a turn to its status."""
ASK: Final = [Call("probe", {"n": 1}), Halt("tool_use")]
DONE: Final = [Say("done"), Halt()]
LONG: Final = [Say("x"), Hang()]

Act = Callable[[Stage, trio.CancelScope], Awaitable[object]]


async def nothing(stage: Stage, caller: trio.CancelScope) -> None:
    await trio.lowlevel.checkpoint()


async def cancel(stage: Stage, caller: trio.CancelScope) -> None:
    await stage.session.cancel()


async def leave(stage: Stage, caller: trio.CancelScope) -> None:
    caller.cancel()


async def close(stage: Stage, caller: trio.CancelScope) -> None:
    await stage.session.close()


async def kill(stage: Stage, caller: trio.CancelScope) -> None:
    loaded = stage.session._sessions.loaded(stage.session.id)
    assert loaded is not None
    loaded.ref.cancel(CancelCause.PARENT)


async def steer(stage: Stage, caller: trio.CancelScope) -> None:
    await stage.session.steer("rather this")


async def deny(stage: Stage, caller: trio.CancelScope) -> None:
    (asked,) = await stage.session.interactions()
    await stage.session.answer(asked.id, Deny())


async def wait(stage: Stage, caller: trio.CancelScope) -> None:
    await trio.sleep(100)


@attrs.define(eq=False)
class BadHook:
    """Fails at everything it is told."""

    name: str = "bad"
    on: frozenset[str] = frozenset({"*"})
    seconds: float = 1.0

    async def tell(self, event: Any) -> None:
        raise RuntimeError("a hook failed")


async def refuses(*_: Any) -> Any:
    raise RuntimeError("nothing is prepared")


@attrs.frozen
class Ending:
    """One way for a turn to end."""

    script: list[list[Any]]
    act: Act = nothing
    fails: str | None = None
    """Every write that begins with such a fact fails."""
    permission: str | None = None
    prepare: Any = None
    state: str = "idle"
    settings: dict[str, Any] = attrs.field(factory=dict)


ENDINGS: Final = {
    "completed": Ending([DONE]),
    "max_rounds": Ending([ASK], state="error", settings={"max_rounds": 1}),
    "provider_error": Ending([[Fail("no", code="no_provider")]], state="error"),
    "provider_raises": Ending([[Raise("a bug")]], state="error"),
    "provider_breaks_off": Ending([[End()]] * 3, state="error"),
    "too_small": Ending([DONE], state="error", settings={"context_length": 1}),
    "tool_refused": Ending([ASK, DONE], deny, permission="?"),
    "question_expires": Ending(
        [ASK, DONE], wait, permission="?", settings={"permission_seconds": 5.0}
    ),
    "pause_cancelled": Ending([ASK], cancel, permission="?"),
    "pause_closed": Ending([ASK], close, permission="?"),
    "user_stop": Ending([LONG], cancel),
    "lost_client": Ending([LONG], leave, state="error"),
    "steered": Ending([[Hang()], DONE], steer),
    "closed": Ending([LONG], close),
    "killed": Ending([LONG], kill, state="error"),
    "not_stored": Ending([DONE], fails="message/recorded", state="error"),
    "not_prepared": Ending([DONE], prepare=refuses, state="error"),
    "not_started": Ending([DONE], fails="RunStarted", state="error"),
    "no_view": Ending([ASK], fails="view/assembled", state="error"),
    "no_dispatch": Ending([ASK, DONE], fails="DispatchCommitted", state="error"),
    "no_outcome": Ending([ASK, DONE], fails="ToolOutcome", state="error"),
    "no_terminal": Ending([DONE], fails="RunTerminal", state="error"),
}


@attrs.define(eq=False)
class Watcher:
    """A client: it holds the newest status, and what it was told."""

    held: StatusChanged | None = None
    told: list[StatusChanged] = attrs.field(factory=list[StatusChanged])
    settled: trio.Event = attrs.field(factory=trio.Event)
    """It has worked, and does not any more."""

    async def watch(
        self,
        stage: Stage,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with stage.session.follow() as feed:
            assert feed.snapshot is not None
            self.take(feed.snapshot.status)
            task_status.started()
            async for event in feed:
                if isinstance(event, StatusChanged):
                    self.take(event)

    def take(self, status: StatusChanged) -> None:
        self.told.append(status)
        self.held = newest_status(self.held, status)
        worked = any(told.state == "generating" for told in self.told)
        if worked and self.held.state != "generating":
            self.settled.set()


@pytest.mark.contract("SES-22")
@pytest.mark.parametrize("how", ENDINGS)
async def test_no_ending_leaves_a_session_generating(tmp_path, autojump_clock, how):
    ending, watcher = ENDINGS[how], Watcher()
    async with (
        open_stage(
            tmp_path,
            replies(*ending.script),
            Probe(permission=ending.permission),
            hooks=[BadHook()],
        ) as stage,
        trio.open_nursery() as nursery,
    ):
        await stage.session.configure(**ending.settings)
        if ending.prepare is not None:
            change_run_ports(stage, prepare=ending.prepare)
        if ending.fails is not None:
            spy_on(stage).fail = lambda what: (
                DiskFullError("full") if what == ending.fails else None
            )
        await nursery.start(watcher.watch, stage)
        caller = trio.CancelScope()

        async def prompt() -> None:
            with caller, suppress(GreenroomError):
                await stage.session.prompt("go")

        nursery.start_soon(prompt)
        await wait_all_tasks_blocked()
        with trio.fail_after(100 + BOUND):
            await ending.act(stage, caller)
            await watcher.settled.wait()
        await wait_all_tasks_blocked()
        assert watcher.held is not None
        assert watcher.held.state == ending.state
        versions = [status.version for status in watcher.told]
        assert versions == sorted(versions)
        assert "generating" in {status.state for status in watcher.told}
        # Whoever comes now is told nothing older, and a snapshot that comes late,
        # from whenever, changes nothing.
        later = Watcher(watcher.held)
        for status in reversed(watcher.told):
            later.take(status)
        assert later.held == watcher.held
        nursery.cancel_scope.cancel()


async def snapshot_of(engine: Any, session_id: str) -> Snapshot:
    async with engine.session(session_id).follow() as feed:
        assert feed.snapshot is not None
        return feed.snapshot


@pytest.mark.contract("SES-22")
async def test_the_next_process_counts_on_above_what_a_client_holds(
    tmp_path, autojump_clock
):
    provider = RehearsalProvider(replies(DONE, DONE, LONG))
    client, seen = Watcher(), list[Snapshot]()
    async with open_test_engine(tmp_path, provider) as engine:
        session = await engine.create_session(workspace=tmp_path)
        seen.append(await snapshot_of(engine, session.id))
        await session.prompt("one")
        await session.prompt("two")
        seen.append(await snapshot_of(engine, session.id))
        await session.close()
        # Loaded again or only looked at: it goes on.
        seen.append(await snapshot_of(engine, session.id))
        await engine.open_session(session.id)
        seen.append(await snapshot_of(engine, session.id))
        # A real second is many changes of a status.
        await trio.sleep(1)
    async with (
        open_test_engine(tmp_path, provider, seed=1) as engine,
        trio.open_nursery() as nursery,
    ):
        fresh = await snapshot_of(engine, session.id)
        seen.append(fresh)
        nursery.start_soon(engine.session(session.id).prompt, "three")
        await wait_all_tasks_blocked()
        busy = await snapshot_of(engine, session.id)
        seen.append(busy)
        nursery.cancel_scope.cancel()
    versions = [snapshot.status_version for snapshot in seen]
    assert versions == sorted(versions)
    # The client held what the first process told last; it believes the second.
    assert fresh.status_version > seen[-3].status_version
    assert busy.status_version > fresh.status_version
    for snapshot in [busy, *seen]:
        client.take(snapshot.status)
        assert client.held is not None
        assert (client.held.version, client.held.state) == (
            busy.status_version,
            "generating",
        )


@pytest.mark.contract("SES-22")
async def test_a_clock_that_is_set_back_counts_nothing_down(
    tmp_path, autojump_clock, monkeypatch
):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        before = (await snapshot_of(stage.engine, stage.session.id)).status_version
        await stage.session.close()
        clock = stage.engine._world.clock
        monkeypatch.setattr(type(clock), "now", lambda _: 1.0)
        after = (await snapshot_of(stage.engine, stage.session.id)).status_version
        assert after >= before > 1_000


def test_of_two_statuses_the_newer_holds_and_of_equals_the_later() -> None:
    old = StatusChanged(session_id="s", version=1, state="generating")  # type: ignore[arg-type]
    new = StatusChanged(session_id="s", version=2, state="idle")  # type: ignore[arg-type]
    same = StatusChanged(session_id="s", version=2, state="error")  # type: ignore[arg-type]
    assert newest_status(None, old) is old
    assert newest_status(old, new) is new
    assert newest_status(new, old) is new
    assert newest_status(new, same) is same
