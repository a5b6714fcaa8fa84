"""A start after a crash looks at what is open, however much has been done before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from kit.stores import SqliteWorld, bootstrap, message, write

from greenroom.protocol import MessageId, RunId, RunStarted, RunTerminal, SessionId
from greenroom.storage import (
    Grant,
    Piece,
    SqliteStore,
    Tape,
    message_fact,
    open_store,
    recover,
)

OPEN = 10


def run_id(number: int) -> RunId:
    return RunId(f"00000000-0000-4000-8000-{number:012}")


def run_pieces(tape: Tape, number: int, *, ends: bool) -> Iterator[Piece]:
    record = message(
        name=f"m{number}",
        order=number + 1,
        role="assistant",
        status="sent" if ends else "pending",
        run_id=run_id(number),
    )
    start = RunStarted(
        run_id=run_id(number), message_id=MessageId(record.id), run_kind="loop"
    )
    yield tape.append_piece([message_fact(record)], now=1.0)
    yield tape.commit_piece(start, now=1.0)
    if ends:
        end = RunTerminal(
            run_id=run_id(number), outcome="completed", stop_reason="end_turn"
        )
        yield tape.commit_piece(end, now=1.0)


def killed(folder: Path, finished: int) -> None:
    """Leave *finished* runs and `OPEN` others, each in a session of its own."""
    world = SqliteWorld(folder)
    peer = world.join()
    store, member = peer.store, peer.member
    number = 0
    for n in range(OPEN):
        scope = SessionId(f"s{n}")
        grant = store.acquire(member, scope, now=0.0)
        assert isinstance(grant, Grant)
        tape = Tape(grant)
        pieces = [tape.append_piece(bootstrap(scope), now=0.0)]
        for _ in range(finished // OPEN):
            pieces += run_pieces(tape, number, ends=True)
            number += 1
        pieces += run_pieces(tape, number, ends=False)
        number += 1
        write(store, *pieces)
    world.kill(peer)


def recovery(folder: Path) -> tuple[list[str], int]:
    """Recover; return the statements it ran and the steps they took."""
    seen: list[dict[str, Any]] = []
    with closing(open_store(folder)) as store:
        assert isinstance(store, SqliteStore)
        member = store.join("next", "", 60.0, now=2.0)
        store.connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, seen.append)
        report = recover(store, member, 2.0)
        store.connection.trace_v2(0, None)
    assert (report.runs, report.messages, len(report.sessions)) == (OPEN, OPEN, OPEN)
    scans = {
        s["sql"]: s["stmt_status"]["SQLITE_STMTSTATUS_FULLSCAN_STEP"]
        for s in seen
        if s["stmt_status"]["SQLITE_STMTSTATUS_FULLSCAN_STEP"] > OPEN
    }
    assert scans == {}
    steps = sum(s["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"] for s in seen)
    return [s["sql"] for s in seen], steps


@pytest.mark.slow
def test_a_start_takes_the_same_steps_after_few_runs_and_after_many(
    tmp_path: Path,
) -> None:
    killed(tmp_path / "few", 20)
    killed(tmp_path / "many", 2_000)
    few, few_steps = recovery(tmp_path / "few")
    many, many_steps = recovery(tmp_path / "many")
    assert few == many
    assert many_steps <= few_steps * 1.1
    assert recovery_is_done(tmp_path / "many")


def recovery_is_done(folder: Path) -> bool:
    with closing(open_store(folder)) as store:
        member = store.join("third", "", 60.0, now=3.0)
        return recover(store, member, 3.0).runs == 0
