"""``greenroom acp`` under clients that were written without it in mind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from kit.acp_process import PATIENCE, alive, environment, scripted, wait_for
from kit.acp_schema import check

pytestmark = pytest.mark.interop

SCRIPT = """[
    [Say("I look. "), Call("list", {"path": "."}),
     Call("write", {"path": "new.txt", "content": "hi"}), Halt("tool_use")],
    [Say("I wrote."), Halt()],
    [Call("shell", {"command": "echo $$ > pid; sleep 50"}), Halt("tool_use")],
]"""
WAIT = SCRIPT.splitlines()[-2]


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text("notes\n")
    return folder


def agent(work: Path, script: str = SCRIPT) -> list[str]:
    """The agent's command, without a space in it but between its words."""
    program = work.parent / "agent.py"
    program.write_text(scripted(script)[-1])
    python, safe, *_ = scripted("[]")
    return [python, safe, str(program), "acp", "--state", str(work.parent / "state")]


def test_the_protocol_s_python_sdk_drives_it(work, sdk_python):
    client = Path(__file__).with_name("sdk_client.py")
    done = subprocess.run(
        [sdk_python, str(client), str(work), *agent(work)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["version"], told["agent"]) == (1, "greenroom")
    assert told["modes"] == ["default", "auto_approve", "full_access"]
    assert told["stops"] == ["end_turn", "cancelled"]
    assert told["asked"][0] == "write new.txt"
    assert told["text"] == "I look. I wrote."
    assert {"tool_call", "tool_call_update", "agent_message_chunk"} <= set(
        told["updates"]
    )
    assert (work / "new.txt").read_text() == "hi"
    assert not alive(int(wait_for(work / "pid")))


#### acpx


def run_acpx(acpx, work, *arguments, script=SCRIPT, **more):
    """Run it in a home of its own; its output is the wire of both directions."""
    command = [
        *(*acpx, "--cwd", str(work), "--format", "json", "--json-strict"),
        *("--ttl", "3", "--agent", " ".join(agent(work, script)), *arguments),
    ]
    return subprocess.Popen(
        command,
        env=environment(HOME=str(work.parent), **more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process):
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, [json.loads(line) for line in out.splitlines()], err


def hold_to_the_schema(wire):
    """Judge the agent's lines of a recorded wire."""
    asked = {}
    for message in wire:
        method = message.get("method", "")
        if "id" in message and method and method != "session/request_permission":
            asked[message["id"]] = method
        elif method in ("session/update", "session/request_permission"):
            check(message)
        elif "stopReason" in message.get("result", {}):
            check(message, answers=asked[message["id"]])


@pytest.mark.parametrize(
    ("policy", "status", "written"),
    [("--approve-all", 0, True), ("--deny-all", 5, False)],
)
def test_acpx_drives_a_prompt_with_tools_and_a_permission(
    work, acpx, policy, status, written
):
    code, wire, err = finished(run_acpx(acpx, work, policy, "exec", "go"))
    assert code == status, err
    hold_to_the_schema(wire)
    assert wire[-1]["result"] == {"stopReason": "end_turn"}
    assert (work / "new.txt").exists() == written


def test_acpx_cancels_a_prompt(work, acpx):
    script, more = f"[{WAIT}]", {"GREENROOM_PERMISSION_MODE": "full_access"}

    def start(*arguments):
        return run_acpx(acpx, work, *arguments, script=script, **more)

    assert finished(start("sessions", "new", "--name", "s"))[0] == 0
    prompt = start("prompt", "-s", "s", "go")
    child = int(wait_for(work / "pid"))
    code, told, err = finished(start("cancel", "-s", "s"))
    assert (code, told[-1]["cancelled"]) == (0, True), err
    code, wire, err = finished(prompt)
    assert code == 0, err
    hold_to_the_schema(wire)
    assert wire[-1]["result"] == {"stopReason": "cancelled"}
    assert not alive(child)
    assert finished(start("sessions", "close", "s"))[0] == 0
