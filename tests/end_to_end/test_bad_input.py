"""Whatever comes in: a clear error, no process left, nothing lost, and it goes on.

Each test ends with the same session being used again.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import httpx2
import pytest
from kit.aftermath import problems, repeated, undispatched
from kit.rehearsal import calls_of, open_stage, read_tape, replies
from kit.stores import open_files

from greenroom.actors.providers import ChatCompletionsProvider
from greenroom.cli import main
from greenroom.engine import open_engine
from greenroom.protocol import AssistantMessage
from greenroom.storage import open_reader
from greenroom.testing import (
    Call,
    Halt,
    RecordingTool,
    RehearsalProvider,
    Say,
    open_test_engine,
)

PATIENCE = 60.0
DONE = [Say("done"), Halt()]


#### A reply that breaks off


def sse(*chunks: dict[str, Any]) -> bytes:
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(arguments: str, **head: Any) -> dict[str, Any]:
    function = {"arguments": arguments} | head.pop("function", {})
    return {"index": 0, "function": function, **head}


HALF_WAY = sse(
    delta(role="assistant", content="I do it: naïve 🎭."),
    delta(tool_calls=[call("", id="call_1", function={"name": "probe"})]),
    delta(tool_calls=[call('{"n": ')]),
    delta(tool_calls=[call("1}")]),
    delta(finish="tool_calls"),
)
WHOLE = sse(delta(content="done"), delta(finish="stop"))
FINISHED = HALF_WAY.index(b'"tool_calls"}') + len(b'"tool_calls"}]}')
"""From here on the reply has said how it ended."""

EVENT_END = FINISHED + len(b"\n\n")
"""From here on that is so even if the connection fails instead of ending."""


class Cut(httpx2.AsyncByteStream):
    """A body that breaks off: with the end of the connection, or with an error."""

    def __init__(self, body: bytes, *, fails: bool) -> None:
        self.body, self.fails = body, fails

    async def __aiter__(self):
        yield self.body
        if self.fails:
            raise httpx2.ReadError("connection reset")


class Server:
    """Answers the first turn with a cut reply each time, then with a whole one."""

    def __init__(self, at: int, *, fails: bool) -> None:
        self.at, self.fails, self.is_well = at, fails, False
        self.requests: list[dict[str, Any]] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        sent = json.loads(request.content)
        self.requests.append(sent)
        whole = self.is_well or sent["messages"][-1]["role"] == "tool"
        stream = Cut(
            WHOLE if whole else HALF_WAY[: self.at], fails=self.fails and not whole
        )
        head = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=head, stream=stream)


async def cut_turn(folder: Path, at: int, *, fails: bool) -> None:
    server, probe = Server(at, fails=fails), RecordingTool()
    transport = httpx2.MockTransport(server)
    url = "http://127.0.0.1:9/v1"
    async with (
        ChatCompletionsProvider(url, transport=transport) as provider,
        open_test_engine(folder, provider, probe) as engine,
    ):
        session = await engine.create_session(workspace=folder, model="m")
        turn = await session.prompt("go")
        assert turn.outcome == ("completed" if probe.calls else "error")
        said_its_end = at >= (EVENT_END if fails else FINISHED)
        assert probe.calls == ([{"n": 1}] if said_its_end else [])
        server.is_well = True
        assert (await session.prompt("again")).outcome == "completed"
    assert problems(folder / "state") == []
    for request in server.requests:
        check_pairing(request["messages"])


def check_pairing(messages: list[dict[str, Any]]) -> None:
    called = [c["id"] for m in messages for c in m.get("tool_calls") or ()]
    answered = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    assert answered == called


async def cut_everywhere(folder: Path, points: Sequence[int], *, fails: bool) -> None:
    for at in points:
        try:
            await cut_turn(folder / str(at), at, fails=fails)
        except BaseException as exc:
            exc.add_note(f"cut at byte {at}")
            raise
        shutil.rmtree(folder / str(at))


@pytest.mark.parametrize("fails", [False, True])
async def test_a_reply_cut_at_some_bytes_ends_one_turn(tmp_path, autojump_clock, fails):
    some = [*range(0, FINISHED - 2, 37), *range(FINISHED - 2, len(HALF_WAY))]
    await cut_everywhere(tmp_path, some, fails=fails)


@pytest.mark.sweep
@pytest.mark.parametrize("fails", [False, True])
async def test_a_reply_cut_at_any_byte_ends_one_turn(tmp_path, autojump_clock, fails):
    await cut_everywhere(tmp_path, range(len(HALF_WAY)), fails=fails)


#### Calls that can't be run

ARGUMENTS = {
    "not JSON": "n = 1",
    "cut": '{"n": 1',
    "a list": "[1]",
    "text": '"n"',
    "null": "null",
    "a number": "NaN",
    "two values": "{} {}",
    "deep": "[" * 100_000,
    "10 MB": json.dumps({"n": "x" * 10_000_000}),
    "10 MB of nothing": " " * 10_000_000,
    "a lone surrogate": '{"n": \ud800}',
    "a NUL": '{"n": \x00}',
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
async def test_arguments_that_are_no_object_are_refused_and_told(tmp_path, arguments):
    probe = RecordingTool()
    script = replies([Call("probe", arguments), Halt("tool_use")], DONE, DONE)
    async with open_stage(tmp_path, script, probe) as stage:
        assert (await stage.session.prompt("go")).outcome == "completed"
        assert probe.operations == []
        (refused,) = calls_of((await stage.session.messages())[1])
        assert refused.status == "error"
        assert "argument" in (refused.response or "")
        assert len(refused.response or "") < 2_000
        assert (await stage.session.prompt("again")).outcome == "completed"
        for sent in sent_arguments(stage.provider):
            assert isinstance(json.loads(sent), dict)
    assert problems(stage.state) == []


def sent_arguments(provider: RehearsalProvider) -> Iterator[str]:
    for request in provider.requests:
        for message in request.messages:
            if isinstance(message, AssistantMessage):
                yield from (call.arguments for call in message.calls)


@pytest.mark.parametrize("name", ["nothing", "", "x" * 10_000, "a\x00b", "../shell"])
async def test_an_unknown_tool_is_an_error_that_the_model_hears_of(tmp_path, name):
    script = replies([Call(name, {"n": 1}), Halt("tool_use")], DONE, DONE)
    async with open_stage(tmp_path, script, RecordingTool()) as stage:
        assert (await stage.session.prompt("go")).outcome == "completed"
        (unknown,) = calls_of((await stage.session.messages())[1])
        assert unknown.status == "error"
        assert (await stage.session.prompt("again")).outcome == "completed"
        assert "execution/dispatch_committed" not in stage.names()
    assert problems(stage.state) == []


#### Workspaces


async def test_a_workspace_that_is_a_link_is_the_folder_it_leads_to(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    write = Call("write", {"path": "new.txt", "content": "hi"})
    provider = RehearsalProvider([[write, Halt("tool_use")], DONE, DONE])
    async with open_test_engine(tmp_path, provider, builtin=True) as engine:
        session = await engine.create_session(
            workspace=link, permission_mode="full_access"
        )
        assert session.settings is not None
        assert session.settings.workspace == str(real.resolve())
        # Turned to another place afterwards, the link leads nobody there.
        link.unlink()
        link.symlink_to(tmp_path)
        await session.prompt("go")
        assert (real / "new.txt").read_text() == "hi"
        assert not (tmp_path / "new.txt").exists()
        assert (await session.prompt("again")).outcome == "completed"


@pytest.mark.parametrize("path", ["out/secret", "../secret", "dangling", "/etc/passwd"])
@pytest.mark.parametrize("tool", ["read", "write"])
async def test_no_path_leads_out_of_the_workspace(tmp_path, tool, path):
    (tmp_path / "secret").write_text("secret")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "out").symlink_to(tmp_path)
    (workspace / "dangling").symlink_to(tmp_path / "new")
    arguments = {"path": path} | ({"content": "x"} if tool == "write" else {})
    script = replies([Call(tool, arguments), Halt("tool_use")], DONE, DONE)
    async with open_stage(
        tmp_path, script, builtin=True, permission_mode="full_access"
    ) as stage:
        await stage.session.prompt("go")
        (refused,) = calls_of((await stage.session.messages())[1])
        assert refused.status == "error"
        assert "secret" not in (refused.response or "").replace(path, "")
        assert (await stage.session.prompt("again")).outcome == "completed"
    assert (tmp_path / "secret").read_text() == "secret"
    assert not (tmp_path / "new").exists()


#### State folders


def run(state: Path, *arguments: str) -> int:
    """Run the command in this process."""
    return main(["run", "hello", "--state", str(state), *arguments])


def session_of(state: Path) -> str:
    with closing(open_reader(state)) as reader:
        (row,) = reader.sessions()
        return row.id


def message_count(state: Path) -> int:
    with closing(open_reader(state)) as reader:
        (row,) = reader.sessions()
        return row.message_count


@pytest.fixture
def folder(monkeypatch) -> Iterator[Path]:
    """A folder of somebody whom permissions bind, which they don't bind root."""
    path = Path(tempfile.mkdtemp(prefix="greenroom-"))
    is_root = os.geteuid() == 0
    monkeypatch.setenv("XDG_CONFIG_HOME", str(path / "none"))
    monkeypatch.chdir(path)
    if is_root:
        os.chown(path, 65_534, 65_534)
        os.seteuid(65_534)
    try:
        yield path
    finally:
        if is_root:
            os.seteuid(0)
        shutil.rmtree(path)


def test_a_read_only_state_folder_is_told_and_nothing_is_lost(folder, capsys):
    state = folder / "state"
    assert run(state) == 0
    before = message_count(state)
    modes = {path: path.stat().st_mode for path in [*state.rglob("*"), state]}
    for path, mode in modes.items():
        path.chmod(stat.S_IMODE(mode) & ~0o222)
    assert run(state) == 5
    assert main(["doctor", "--repair", "--state", str(state)]) == 5
    said = capsys.readouterr().err
    assert "can't be" in said
    assert "Traceback" not in said
    for path, mode in reversed(modes.items()):
        path.chmod(stat.S_IMODE(mode))
    assert message_count(state) == before
    assert run(state, "--session", session_of(state)) == 0
    assert message_count(state) == before + 2


@pytest.mark.parametrize("place", ["file", "file/below", "\x00", "x" * 300])
def test_a_state_folder_that_can_be_none_is_told(folder, capsys, place):
    (folder / "file").write_text("not a folder")
    assert run(folder / place) in (2, 5)
    assert "Traceback" not in capsys.readouterr().err
    assert (folder / "file").read_text() == "not a folder"


def test_a_state_of_a_newer_version_is_told_and_not_touched(folder, capsys):
    state = folder / "state"
    run(state)
    session = session_of(state)
    sql(state, "INSERT INTO migration VALUES (99, 'from the future')")
    before = (state / "greenroom.db").read_bytes()
    for command in (["run", "x"], ["sessions"], ["inspect", session], ["doctor"]):
        assert main([*command, "--state", str(state)]) == 5
        assert "newer" in capsys.readouterr().err
    assert (state / "greenroom.db").read_bytes() == before
    sql(state, "DELETE FROM migration WHERE version = 99")
    assert run(state, "--session", session) == 0


def sql(state: Path, statement: str) -> None:
    with closing(apsw.Connection(str(state / "greenroom.db"))) as db:
        db.execute(statement)


async def test_opening_and_closing_leaves_no_file_open(tmp_path):
    counts: list[int] = []
    for _ in range(4):
        async with open_engine(state=tmp_path / "state") as engine:
            await engine.sessions()
        with closing(open_reader(tmp_path / "state")):
            pass
        counts.append(open_files())
    assert len(set(counts)) == 1


#### Processes

PROGRAM = """
import sys
import greenroom.cli._provider as provider
from greenroom.cli import main
from greenroom.testing import Call, Halt, RehearsalProvider, Say

SCRIPT = {script}
provider.rehearsal = lambda: RehearsalProvider(SCRIPT)
sys.exit(main(sys.argv[1:]))
"""
STUBBORN = "trap '' TERM HUP INT; echo $$ > pid; while :; do sleep 0.05; done"
STUBBORN_TURN = f'[[Call("shell", {{"command": {STUBBORN!r}}}), Halt("tool_use")]]'


def program(
    work: Path, script: str, *arguments: str, limit: Callable[[], None] | None = None
) -> subprocess.Popen[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GREENROOM_")}
    command = [sys.executable, "-P", "-c", PROGRAM.format(script=script), "run", "go"]
    return subprocess.Popen(
        [*command, "--yes", "--state", str(work.parent / "state"), *arguments],
        cwd=work,
        env=kept | {"XDG_CONFIG_HOME": "/nonexistent"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit,
    )


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + PATIENCE
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text().strip()


def is_alive(pid: int) -> bool:
    stat_file = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        return stat_file.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.fixture
def work(tmp_path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_command_that_ignores_signals_does_not_outlive_its_engine(work, number):
    with program(work, STUBBORN_TURN) as process:
        pid = int(wait_for(work / "pid"))
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert not is_alive(pid)
    state = work.parent / "state"
    session = session_of(state)
    with program(work, '[[Say("done"), Halt()]]', "--session", session) as process:
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert problems(state) == []
    with closing(open_reader(state)) as reader:
        statuses = [m.status for m in reader.messages(read_tape_id(state))]
    assert statuses == ["sent", "error", "sent", "sent"]


def read_tape_id(state: Path) -> Any:
    return read_tape(state, session_of(state))[0].session_id


WRITES = (
    "[[Call('shell', {'command': 'echo \"$GREENROOM_OPERATION\" >> effects'}),"
    " Halt('tool_use')], [Say('x' * 150_000), Halt()], [Say('done'), Halt()]]"
)


@pytest.mark.parametrize("pages", [1, 12, 36, 72])
def test_a_disk_with_too_little_room_stops_a_turn_and_loses_nothing(work, pages):
    with program(work, '[[Say("done"), Halt()]]') as process:
        process.communicate(timeout=PATIENCE)
    state = work.parent / "state"
    session, before = session_of(state), message_count(state)

    def little_room() -> None:
        size = pages * 4_096
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    with program(work, WRITES, "--session", session, limit=little_room) as process:
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode in (1, 5)
    assert "Traceback" not in said
    assert message_count(state) >= before
    with program(work, '[[Say("done"), Halt()]] * 2', "--session", session) as process:
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert problems(state) == []
    effects = work / "effects"
    done = effects.read_text().split() if effects.exists() else []
    assert repeated(done) == []
    tape = read_tape(state, session)
    dispatches = [e for e in tape if e.fact.name == "execution/dispatch_committed"]
    assert len(done) <= len(dispatches)
    assert undispatched([], tape) == set()
