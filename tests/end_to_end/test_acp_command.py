"""``greenroom acp`` under clients of every kind: they hurt only themselves."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from kit.acp_process import (
    PATIENCE,
    AgentProcess,
    alive,
    environment,
    scripted,
    wait_for,
)

MIB = 1024 * 1024
DONE = '[Say("done"), Halt()]'
SLEEP = (
    '[[Say("I wait."), Call("shell", {"command": "echo $$ > pid; sleep 50"}),'
    ' Halt("tool_use")]]'
)
WRITE = (
    '[[Call("write", {"path": "new.txt", "content": "hi"}), Halt("tool_use")],'
    f" {DONE}]"
)
LEAVES_WITHIN = 5.0


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def agent(work):
    agents = []

    def start(*arguments, **options):
        agents.append(AgentProcess(work, *arguments, **options))
        return agents[-1]

    yield start
    for one in agents:
        one.close()


def run(work, session_id, *arguments, script=f"[{DONE}]"):
    """Go on in the session with the command line."""
    state = str(work.parent / "state")
    done = subprocess.run(
        [
            *(*scripted(script), "run", "and on", "--session", session_id),
            *("--state", state, *arguments),
        ],
        cwd=work,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


#### What reaches standard output


def test_nothing_but_the_protocol_reaches_standard_output(agent, work):
    # Prints by every way there is, while a request is worked on; and a child does too.
    noisy = """
import os
def script(request):
    print("noise", flush=True)
    os.write(1, b"noise")
    os.system("echo noise; cat")
    return [Say("done"), Halt()]
"""
    one = agent("script", before=noisy)
    session_id = one.start()
    one.prompt(session_id)
    assert one.response("prompt")["result"]["stopReason"] == "end_turn"
    one.hang_up()
    assert one.leaves()[0] == 0
    assert one.log.read_text().count("noise") == 3


def test_a_prompt_with_a_tool_a_permission_and_a_file(agent, work):
    one = agent(WRITE)
    session_id = one.start()
    one.prompt(session_id)
    asked = one.until("session/request_permission")
    assert not (work / "new.txt").exists()
    option = asked["params"]["options"][0]["optionId"]
    selected = {"outcome": "selected", "optionId": option}
    one.send(id=asked["id"], result={"outcome": selected})
    assert one.response("prompt")["result"]["stopReason"] == "end_turn"
    assert (work / "new.txt").read_text() == "hi"
    one.hang_up()
    assert one.leaves()[0] == 0


#### Hostile clients


def test_bad_lines_are_answered_and_the_session_works(agent, work):
    bad = {
        b"\x00\xff garbage {{{\n": -32700,
        b'[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}]\n': -32600,
        b'{"jsonrpc":"2.0","id":null,"method":"session/new"}\n': -32600,
    }
    one = agent(f"[{DONE}]")
    for line, code in bad.items():
        one.write(line)
        assert one.response(None)["error"]["code"] == code
    session_id = one.start()
    for line in bad:
        one.write(line)
        assert "error" in one.response(None)
    one.prompt(session_id)
    assert one.response("prompt")["result"]["stopReason"] == "end_turn"
    one.hang_up()
    assert one.leaves()[0] == 0
    assert "done" in run(work, session_id)


def test_twenty_megabytes_in_one_line_are_read_and_judged(agent, work):
    one = agent(f"[{DONE}]")
    session_id = one.start()
    prompt = [{"type": "text", "text": "x" * 20_000_000}]
    too_much = one.call(1, "session/prompt", sessionId=session_id, prompt=prompt)
    assert too_much["error"]["code"] == -32602
    assert too_much["error"]["data"]["code"] == "message_too_large"
    one.prompt(session_id)
    assert one.response("prompt")["result"]["stopReason"] == "end_turn"
    one.hang_up()
    assert one.leaves()[0] == 0
    assert "done" in run(work, session_id)


def test_a_line_that_never_ends_ends_the_connection_with_a_word(agent, work):
    one = agent(SLEEP, mode="full_access")
    session_id = one.start()
    one.prompt(session_id)
    child = int(wait_for(work / "pid"))
    with suppress(BrokenPipeError):  # it stops reading on the way
        one.write(b"x" * 33 * MIB)
    complaint = one.response(None)["error"]
    assert complaint["code"] == -32600
    assert "longer than" in complaint["message"]
    status, seconds = one.leaves()
    assert (status, seconds < LEAVES_WITHIN) == (0, True)
    assert not alive(child)
    assert "done" in run(work, session_id)


#### Ends


def test_the_end_of_the_input_in_the_middle_of_a_prompt(agent, work):
    one = agent(SLEEP, mode="full_access")
    session_id = one.start()
    one.prompt(session_id)
    child = int(wait_for(work / "pid"))
    one.hang_up()
    status, seconds = one.leaves()
    assert (status, seconds < LEAVES_WITHIN) == (0, True)
    assert not alive(child)
    assert "done" in run(work, session_id)


def test_the_end_of_the_input_in_the_middle_of_a_permission(agent, work):
    one = agent(WRITE)
    session_id = one.start()
    one.prompt(session_id)
    one.until("session/request_permission")
    one.hang_up()
    status, seconds = one.leaves()
    assert (status, seconds < LEAVES_WITHIN) == (0, True)
    assert not (work / "new.txt").exists()
    # The question is still open, and whoever comes next is asked.
    assert "done" in run(work, session_id, "--yes", script=f"[{DONE}, {DONE}]")
    assert (work / "new.txt").read_text() == "hi"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_request_to_terminate_is_heard(agent, work, number):
    one = agent(SLEEP, mode="full_access")
    session_id = one.start()
    one.prompt(session_id)
    child = int(wait_for(work / "pid"))
    one.process.send_signal(number)
    status, seconds = one.leaves()
    assert (status, seconds < LEAVES_WITHIN) == (130, True)
    assert not alive(child)
    assert "Traceback" not in one.log.read_text()
    assert "done" in run(work, session_id)


def test_an_output_that_nobody_reads_any_more_ends_it(work):
    command = [*scripted(f"[{DONE}]"), "acp", "--state", str(work.parent / "state")]
    process = subprocess.Popen(
        command,
        cwd=work,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    process.stdin.write(b"nonsense\n")
    process.stdin.flush()
    assert process.wait(timeout=PATIENCE) == 0
    process.stdin.close()
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()


def test_an_output_that_is_full_does_not_keep_the_process(work):
    process = subprocess.Popen(
        [*scripted("[]"), "acp", "--state", str(work.parent / "state")],
        cwd=work,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    # Its answers are more than a pipe holds, and nobody reads them.
    process.stdin.write(b"nonsense\n" * 5_000)
    process.stdin.close()
    started = time.monotonic()
    assert process.wait(timeout=PATIENCE) == 0
    assert time.monotonic() - started < LEAVES_WITHIN
    process.stdout.close()


def test_a_tool_that_does_not_stop_does_not_keep_the_process(agent, work):
    stubborn = """
import trio
import greenroom.cli._acp as acp
import greenroom.actors.engine._open as engine
from greenroom.testing import RecordingTool

async def body(arguments, operation):
    await operation.dispatch()
    open("pid", "w").write("here")
    with trio.CancelScope(shield=True):
        await trio.sleep(60)

engine.builtin_tools = lambda: [RecordingTool("probe", body=body)]
acp.LEAVE_SECONDS = 0.5
"""
    one = agent('[[Call("probe"), Halt("tool_use")]]', before=stubborn)
    session_id = one.start()
    one.prompt(session_id)
    wait_for(work / "pid")
    one.hang_up()
    status, seconds = one.leaves()
    assert (status, seconds < 2.0) == (0, True)
    assert "done" in run(work, session_id)


#### What stands at its ends


def test_on_a_terminal_it_says_what_it_is_and_ends_at_ctrl_d(work):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*scripted("[]"), "acp", "--state", str(work.parent / "state")],
        cwd=work,
        env=environment(),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    assert process.stdout is not None
    request = {"jsonrpc": "2.0", "id": 0, "method": "initialize"}
    request["params"] = {"protocolVersion": 1}
    os.write(ours, json.dumps(request).encode() + b"\n")
    assert json.loads(process.stdout.readline())["id"] == 0
    os.write(ours, b"\x04")
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert b"talks to an editor" in said
    os.close(ours)


def test_requests_can_come_from_a_file(work):
    requests = work / "requests"
    requests.write_text('{"jsonrpc":"2.0","id":0,"method":"nonsense"}\n')
    with requests.open("rb") as stream:
        done = subprocess.run(
            [*scripted("[]"), "acp", "--state", str(work.parent / "state")],
            env=environment(),
            stdin=stream,
            capture_output=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 0
    assert json.loads(done.stdout)["error"]["code"] == -32600


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--base-url", "http://127.0.0.1:1"], 2, "no model"),
        (["--base-url", "nonsense", "--model", "m"], 2, "base_url"),
        (["extra"], 2, "unrecognized"),
    ],
)
def test_wrong_use_is_said_on_standard_error(work, arguments, status, says):
    done = subprocess.run(
        [*scripted("[]"), "acp", "--state", str(work.parent / "state"), *arguments],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_standard_stream_that_is_closed_is_no_start(work, closed):
    command = f"exec {sys.executable} -P -m greenroom acp --state {work}/s {closed}"
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    assert "must be open" in done.stderr + done.stdout
    assert not (work / "s").exists()
