"""An engine is killed with SIGKILL while another one works in the same state folder.

At each numbered write of a turn, before and after it, and at random moments. Nothing
that was told to be durable is lost, no effect happens twice, what is in doubt is said
to be, no process is left, the neighbour is not disturbed, and the session goes on.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import attrs
import pytest
import trio
from kit.aftermath import problems, unended_runs
from kit.operations import processes_of
from kit.rehearsal import calls_of, journal_of, read_tape

from greenroom.engine import open_engine
from greenroom.protocol import (
    DispatchCommitted,
    MessageRecord,
    SessionId,
    command_of,
)
from greenroom.storage import open_reader
from greenroom.testing import Halt, RehearsalProvider, Say

CHILD = [sys.executable, "-P", str(Path(__file__).with_name("child.py"))]
PATIENCE = 60.0
DONE = [Say("done"), Halt()]

pytestmark = pytest.mark.skipif(
    not os.path.isdir("/proc"), reason="looks for orphans in /proc"
)


@attrs.define(eq=False)
class Folder:
    """The state folder of a module's tests, and the engine that lives beside them."""

    root: Path
    neighbour: subprocess.Popen[str]

    @property
    def state(self) -> Path:
        return self.root / "state"

    def ask_neighbour(self) -> None:
        assert self.neighbour.stdin is not None
        self.neighbour.stdin.write("go\n")
        self.neighbour.stdin.flush()

    def hear_neighbour(self) -> str:
        assert self.neighbour.stdout is not None
        return self.neighbour.stdout.readline().strip()


@attrs.define(eq=False)
class Victim:
    """An engine that was killed, and what it said before."""

    workspace: Path
    lines: list[str]
    status: int

    @property
    def session_id(self) -> SessionId:
        return SessionId(self.said("session")[0])

    @property
    def effects(self) -> list[str]:
        path = self.workspace / "effects"
        return path.read_text().splitlines() if path.exists() else []

    def said(self, what: str) -> list[str]:
        return [line.split(" ", 1)[1] for line in self.lines if line.startswith(what)]


def start(role: str, state: Path, workspace: Path, **environment: str):
    workspace.mkdir()
    return subprocess.Popen(
        [*CHILD, role, str(state), str(workspace)],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Folder]:
    root = tmp_path_factory.mktemp("killed")
    with start("neighbour", root / "state", root / "neighbour") as neighbour:
        found = Folder(root, neighbour)
        assert found.hear_neighbour().startswith("session")
        yield found
        neighbour.communicate(timeout=PATIENCE)
    assert neighbour.returncode == 0


def killed(
    folder: Folder, name: str, point: str = "", after: float = 0.0, calls: int = 1
) -> Victim:
    """Run a victim until it dies at *point*, or *after* so many seconds of work."""
    workspace = folder.root / name
    with start(
        "victim", folder.state, workspace, KILL_AT=point, CALLS=str(calls)
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        if not point:
            try:
                process.wait(after)
            except subprocess.TimeoutExpired:
                process.kill()
        rest, _ = process.communicate(timeout=PATIENCE)
    lines = [first.strip(), *rest.splitlines()]
    return Victim(workspace, lines, process.returncode)


#### After the kill


def look(folder: Folder, victim: Victim) -> tuple[list[str], list[MessageRecord]]:
    """Recover as a new engine does; return the classes found, and the transcript."""

    async def recover() -> list[str]:
        async with open_engine(state=folder.state, builtin=False) as engine:
            return [str(detail.run_class) for detail in engine.recovered.details]

    classes = trio.run(recover)
    assert trio.run(recover) == [], "the same report came again"
    with closing(open_reader(folder.state)) as reader:
        return classes, reader.messages(victim.session_id)


def check(folder: Folder, victim: Victim) -> None:
    """Hold what is left to the law, then let the session go on."""
    assert victim.status == -signal.SIGKILL
    tape = read_tape(folder.state, victim.session_id)
    keys = {entry.fact.key for entry in tape}
    assert [key for key in victim.said("told") if key not in keys] == []
    dispatched = {
        record.operation.hash
        for record in journal_of(tape)
        if isinstance(record, DispatchCommitted)
    }
    assert set(victim.effects) <= dispatched
    assert max(Counter(victim.effects).values(), default=0) <= 1
    assert unended_runs(tape) == set()
    wait_for_end(dispatched)
    trio.run(go_on, folder, victim)
    assert problems(folder.state) == []


def wait_for_end(operations: set[str]) -> None:
    """Wait for what the killed engine had started; its keeper needs a moment."""
    deadline = time.monotonic() + PATIENCE
    while left := list(processes_of(*operations)):
        assert time.monotonic() < deadline, f"orphans: {left}"
        time.sleep(0.01)


async def go_on(folder: Folder, victim: Victim) -> None:
    async with working(folder) as engine:
        session = await engine.open_session(victim.session_id)
        assert (await session.prompt("again")).outcome == "completed"
        messages = await session.messages(limit=500)
    assert [m.id for m in messages if m.status == "pending"] == []
    users = Counter(command_of(m) for m in messages if m.role == "user")
    assert [c for c in victim.said("posted") if users[c] != 1] == []
    assert max(users.values()) == 1
    roles = Counter(message.role for message in messages)
    assert roles["assistant"] <= roles["user"], "a turn came twice"


def working(folder: Folder):
    """Return an engine whose model says only that it is done."""
    provider = RehearsalProvider(lambda request: DONE)
    return open_engine(state=folder.state, provider=provider, program="the next one")


#### At each write

OUTCOME = "commit:ToolOutcome 1"
DISPATCH = "commit:DispatchCommitted 1"
STARTED = "commit:RunStarted 1"
TERMINAL = "commit:RunTerminal 1"
SAID, REPLY = (f"append:input/recorded {number}" for number in (1, 2))
ROUND, FINAL = (f"append:message/recorded {number}" for number in (1, 2))
NOTHING: list[str] = []

# When it dies, the class of its open run, the effects, and the transcript's statuses
# after the recovery. An input that was accepted and not begun is still in the inbox, or
# waits again: what was said is taken back as long as no answer has begun.
STATES = [
    ("before post 1", None, 0, NOTHING),
    ("after post 1", None, 0, NOTHING),
    (f"before {SAID}", None, 0, NOTHING),
    (f"after {SAID}", None, 0, NOTHING),
    (f"before {REPLY}", None, 0, NOTHING),
    (f"after {REPLY}", None, 0, ["sent", "error"]),
    (f"before {STARTED}", None, 0, ["sent", "error"]),
    (f"after {STARTED}", "not_dispatched", 0, ["sent", "error"]),
    (f"before {DISPATCH}", "not_dispatched", 0, ["sent", "error"]),
    (f"after {DISPATCH}", "indeterminate", 0, ["sent", "error"]),
    (f"before {OUTCOME}", "indeterminate", 1, ["sent", "error"]),
    (f"after {OUTCOME}", "completed", 1, ["sent", "error"]),
    (f"before {ROUND}", "completed", 1, ["sent", "error"]),
    (f"after {ROUND}", "completed", 1, ["sent", "error"]),
    (f"before {TERMINAL}", "completed", 1, ["sent", "error"]),
    (f"after {TERMINAL}", None, 1, ["sent", "error"]),
    (f"before {FINAL}", None, 1, ["sent", "error"]),
    (f"after {FINAL}", None, 1, ["sent", "sent"]),
]


@pytest.mark.contract("JRN-16")
@pytest.mark.parametrize(
    ("point", "run_class", "effects", "statuses"), STATES, ids=[s[0] for s in STATES]
)
def test_a_kill_at_a_write_leaves_what_the_table_says(
    folder, point, run_class, effects, statuses
):
    folder.ask_neighbour()
    victim = killed(folder, point.replace("/", "-"), point)
    classes, messages = look(folder, victim)
    assert classes == ([] if run_class is None else [run_class])
    assert len(victim.effects) == effects
    assert [message.status for message in messages] == statuses
    check(folder, victim)
    assert folder.hear_neighbour() == "turn completed"


@pytest.mark.parametrize(
    ("point", "run_class", "second"),
    [
        (f"after {OUTCOME}", "completed", "interrupted before this call"),
        ("after commit:DispatchCommitted 2", "indeterminate", "not known whether"),
    ],
)
def test_of_two_calls_a_kill_leaves_each_as_it_was(folder, point, run_class, second):
    folder.ask_neighbour()
    victim = killed(folder, f"two-{run_class}", point, calls=2)
    classes, messages = look(folder, victim)
    assert classes == [run_class]
    first, other = calls_of(messages[1])
    assert "the call ran (without an error)" in (first.response or "")
    assert second in (other.response or "")
    assert len(victim.effects) == 1
    check(folder, victim)
    assert folder.hear_neighbour() == "turn completed"


#### At random moments


def kill_at_random(folder: Folder, name: str, chance: random.Random) -> Victim:
    folder.ask_neighbour()
    victim = killed(folder, name, after=chance.uniform(0.0, 1.2))
    classes, _ = look(folder, victim)
    assert len(classes) <= 1
    check(folder, victim)
    assert folder.hear_neighbour() == "turn completed"
    return victim


@pytest.mark.parametrize("seed", range(12))
def test_a_kill_at_a_random_moment_loses_nothing(folder, seed):
    kill_at_random(folder, f"random-{seed}", random.Random(seed))


@pytest.mark.sweep
def test_two_hundred_kills_at_random_moments_lose_nothing(folder):
    chance, told, effects = random.Random(2026), 0, 0
    for number in range(200):
        try:
            victim = kill_at_random(folder, f"sweep-{number}", chance)
        except BaseException as exc:
            exc.add_note(f"kill number {number}")
            raise
        told += len(victim.said("told"))
        effects += len(victim.effects)
    assert told > 1_000
    assert effects > 50
