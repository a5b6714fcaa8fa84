"""The command as a user has it: a process, a terminal, a state folder."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

GREENROOM = [sys.executable, "-P", "-m", "greenroom"]
PATIENCE = 30.0


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GREENROOM_")}
    kept.pop("OPENAI_API_KEY", None)
    return kept | {"TERM": "dumb", "XDG_CONFIG_HOME": "/nonexistent"} | more


def greenroom(*arguments, cwd, **more):
    return subprocess.run(
        [*GREENROOM, *arguments],
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
    )


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text("one\ntwo\n")
    return folder


def state_of(work: Path) -> str:
    return str(work.parent / "state")


def run(work, *arguments, **more):
    return greenroom("run", "--state", state_of(work), *arguments, cwd=work, **more)


def test_a_run_without_a_model_says_that_it_is_a_rehearsal(work):
    done = run(work, "hello")
    assert done.returncode == 0, done.stderr
    assert "rehearsal" in done.stdout
    assert "The list has 1 line." in done.stdout


def test_json_is_a_line_for_each_event_and_nothing_else(work):
    done = run(work, "hello", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[0]["type"] == "session"
    assert lines[-1]["type"] == "turn"
    assert lines[-1]["outcome"] == "completed"
    assert {"stream/updated", "session/messages_changed", "stream/completed"} <= {
        line["type"] for line in lines
    }
    assert "rehearsal" in done.stderr


def test_a_session_goes_on_and_is_listed_and_told(work):
    first = run(work, "hello", "--json")
    session = json.loads(first.stdout.splitlines()[0])["sessionId"]
    second = run(work, "and again", "--session", session[:8], "--json")
    assert second.returncode == 0, second.stderr
    assert json.loads(second.stdout.splitlines()[0])["sessionId"] == session

    listed = greenroom("sessions", "--json", "--state", state_of(work), cwd=work)
    (row,) = [json.loads(line) for line in listed.stdout.splitlines()]
    assert (row["id"], row["messages"], row["title"]) == (session, 4, "hello")

    told = greenroom("inspect", session, "--state", state_of(work), cwd=work)
    assert told.stdout.count("run started") == 2
    run_id = re.findall(r"^run (\S+)", told.stdout, re.MULTILINE)[0]
    of_run = greenroom("inspect", run_id, "--state", state_of(work), cwd=work)
    assert of_run.stdout.count("run started") == 1
    as_json = greenroom(
        "inspect", run_id, "--json", "--state", state_of(work), cwd=work
    )
    assert all(
        json.loads(line)["runId"] == run_id for line in as_json.stdout.splitlines()
    )


def test_the_prompt_can_come_from_standard_input(work):
    done = subprocess.run(
        [*GREENROOM, "run", "-", "--state", state_of(work)],
        cwd=work,
        env=environment(),
        input="hello from a pipe\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    listed = greenroom("sessions", "--state", state_of(work), cwd=work)
    assert "hello from a pipe" in listed.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["run", "x", "--session", "nobody"], 2, "no session"),
        (["run", " "], 2, "empty"),
        (["run", "x", "--cwd", "/nonexistent"], 2, "folder"),
        (["run", "x", "--base-url", "http://127.0.0.1:1"], 2, "no model"),
        (["run", "x", "--model", "m"], 2, "who serves it"),
        (["run", "x", "--base-url", "nonsense", "--model", "m"], 2, "base_url"),
        (["inspect", "nobody"], 5, "no state"),
        (["nothing"], 2, "invalid choice"),
        ([], 2, "required"),
    ],
)
def test_wrong_use_says_what_and_exits_with_its_number(work, arguments, status, says):
    extra = ["--state", state_of(work)] if arguments[1:] else []
    done = greenroom(*arguments, *extra, cwd=work)
    assert done.returncode == status
    assert says in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_nothing_listens_is_an_error_of_the_run(work):
    done = run(work, "x", "--base-url", "http://127.0.0.1:1/v1", "--model", "m")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "failed" in done.stdout


def test_sessions_of_a_new_folder_are_none(work):
    done = greenroom("sessions", "--state", state_of(work), cwd=work)
    assert (done.returncode, done.stdout) == (
        0,
        f"no sessions yet in {state_of(work)}\n",
    )
    assert not Path(state_of(work)).exists()


def test_a_damaged_state_is_said_and_nothing_is_started(work):
    run(work, "hello")
    database = next(Path(state_of(work)).glob("*.db"))
    database.write_bytes(b"SQLite format 3\x00" + b"\xff" * 8_000)
    done = run(work, "hello")
    assert done.returncode == 5
    assert "Traceback" not in done.stderr
    assert "restore a copy" in done.stderr
    assert "greenroom doctor --salvage" in done.stderr


#### On a terminal

SCRIPTED = """
import sys, trio
from greenroom.actors.providers import Call, Halt, RehearsalProvider, Say
import greenroom.cli._provider as provider
from greenroom.cli import main

SCRIPT = {script}
provider.rehearsal = lambda: RehearsalProvider(SCRIPT)
sys.exit(main(sys.argv[1:]))
"""


class Screen:
    """A process on a pseudo-terminal."""

    def __init__(self, work, command, **more):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(work)
            os.execve(sys.executable, command, environment(**more))
        self.text = ""

    def until(self, wanted):
        deadline = time.monotonic() + PATIENCE
        while wanted not in self.text:
            assert time.monotonic() < deadline, self.text
            self.read(0.2)

    def read(self, seconds):
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                self.text += os.read(self.fd, 65_536).decode(errors="replace")
            except OSError:
                return False
        return True

    def type(self, text):
        os.write(self.fd, text.encode())

    def status(self):
        deadline = time.monotonic() + PATIENCE
        while self.read(0.1):
            assert time.monotonic() < deadline, self.text
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def scripted_command(work, script, *arguments):
    program = SCRIPTED.format(script=script)
    state = ["--state", state_of(work)]
    return [sys.executable, "-P", "-c", program, "run", *arguments, *state]


def scripted(work, script, *arguments, **more):
    return Screen(work, scripted_command(work, script, *arguments), **more)


WRITE = (
    '[[Call("write", {"path": "new.txt", "content": "hi"}), Halt("tool_use")],'
    ' [Say("done"), Halt()]]'
)
SLEEP = (
    '[[Say("I wait."), Call("shell", {"command": "echo $$ > pid; sleep 50"}),'
    ' Halt("tool_use")]]'
)
UNTIL_TOLD = (
    '[[Call("shell", {"command": "until [ -e go ]; do sleep 0.01; done"}),'
    ' Halt("tool_use")], [Say("done"), Halt()]]'
)


@pytest.mark.parametrize("form", [["--json"], []])
def test_a_reader_that_goes_away_ends_the_run_without_a_word(work, form):
    process = subprocess.Popen(
        scripted_command(work, UNTIL_TOLD, "wait", "--yes", *form),
        cwd=work,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    (work / "go").touch()
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert b"Traceback" not in said
    assert b"BrokenPipe" not in said


@pytest.mark.parametrize(("typed", "written"), [("y\n", True), ("not here\n", False)])
def test_a_permission_is_asked_on_the_terminal(work, typed, written):
    screen = scripted(work, WRITE, "write it")
    screen.until("allow this?")
    assert not (work / "new.txt").exists()
    screen.type(typed)
    assert screen.status() == 0
    assert (work / "new.txt").exists() == written


def test_a_prompt_can_be_typed_and_permissions_are_asked_after_it(work):
    screen = scripted(work, WRITE, "-")
    screen.until("Ctrl-D")
    screen.type("write\nit\n\x04")
    screen.until("allow this?")
    screen.type("y\n")
    assert screen.status() == 0
    assert (work / "new.txt").exists()


def test_the_end_of_the_input_names_the_session_that_waits(work):
    screen = scripted(work, WRITE, "write it")
    screen.until("allow this?")
    screen.type("\x04")
    assert screen.status() == 4
    listed = greenroom("sessions", "--json", "--state", state_of(work), cwd=work)
    assert f"\nsession {json.loads(listed.stdout)['id']}" in screen.text.replace(
        "\r", ""
    )


def test_yes_grants_without_asking(work):
    screen = scripted(work, WRITE, "write it", "--yes")
    assert screen.status() == 0
    assert "allow this?" not in screen.text
    assert (work / "new.txt").read_text() == "hi"


def test_ctrl_c_stops_the_turn_and_its_processes(work):
    screen = scripted(work, SLEEP, "wait", "--yes")
    screen.until("> shell")
    wait_for(work / "pid")
    screen.type("\x03")
    assert screen.status() == 130
    assert "stopped" in screen.text
    assert not alive(int((work / "pid").read_text()))


def test_a_request_to_terminate_leaves_and_ends_what_runs(work):
    screen = scripted(work, SLEEP, "wait", "--yes")
    screen.until("> shell")
    wait_for(work / "pid")
    os.kill(screen.pid, signal.SIGTERM)
    assert screen.status() == 130
    assert not alive(int((work / "pid").read_text()))


def test_without_a_terminal_an_open_question_is_an_error_and_stays_open(work):
    done = subprocess.run(
        scripted_command(work, WRITE, "x"),
        cwd=work,
        env=environment(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE,
    )
    assert done.returncode == 4
    assert "--yes" in done.stderr
    listed = greenroom("sessions", "--state", state_of(work), cwd=work)
    assert "waits for an answer" in listed.stdout
    session = listed.stdout.split()[0]
    # Asked again when somebody is there; the next prompt comes after it.
    screen = scripted(work, '[[Say("done"), Halt()]] * 2', "next", "--session", session)
    screen.until("allow this?")
    screen.type("y\n")
    assert screen.status() == 0
    assert (work / "new.txt").exists()


def test_a_session_that_another_process_has_is_refused_with_its_name(work):
    screen = scripted(work, SLEEP, "wait", "--yes")
    screen.until("> shell")
    wait_for(work / "pid")
    listed = greenroom("sessions", "--json", "--state", state_of(work), cwd=work)
    session = json.loads(listed.stdout)["id"]
    refused = run(work, "me too", "--session", session)
    assert refused.returncode == 3
    assert f"process {screen.pid}" in refused.stderr
    beside = run(work, "a session of my own")
    assert beside.returncode == 0, beside.stderr
    screen.type("\x03")
    assert screen.status() == 130


def wait_for(path):
    deadline = time.monotonic() + PATIENCE
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended; only its parent has not looked yet.
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_ctrl_c_ends_the_demo_without_a_traceback(work):
    screen = Screen(work, [*GREENROOM, "demo"])
    screen.until("Wait for the audience")
    screen.type("\x03")
    assert screen.status() == 130
    assert "Traceback" not in screen.text


def test_the_demo_plays_to_its_end(tmp_path):
    unused = str(tmp_path / "unused")
    done = greenroom("demo", cwd=tmp_path, GREENROOM_STATE=unused)
    assert done.returncode == 0, done.stderr
    for said in (
        "The model below is a script",
        "granted",
        "stopped in",
        "kill -9",
        "not known whether",
        "committed dispatch of shell",
    ):
        assert said in done.stdout
    assert not (tmp_path / "unused").exists()
