"""The shell tool: real processes; nothing of them stays, on any way out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
from kit.operations import (
    MADE,
    FakeOperation,
    builtin,
    call,
    check,
    picture,
    processes_of,
)

from greenroom.actors.tools import Needs, ToolContext, ToolRefused, ToolResult
from greenroom.actors.tools.builtin._script import Ended
from greenroom.actors.tools.builtin._shell import child_environment, describe

PROMPTLY = 10.0
"""Far from the 30 s that everything here would take; a busy machine may be slow."""

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only there is every descendant found"
)


async def shell(context: ToolContext, command: str, **more: object) -> ToolResult:
    return await call("shell", context, command=command, **more)


async def test_it_asks_with_the_command_on_one_line_and_starts_nothing(context):
    needs = await check("shell", context, command="touch x\n\techo 'y'")
    assert needs == Needs(
        permission="run a command: touch x echo 'y'",
        title="touch x echo 'y'",
        kind="execute",
        detail="touch x\n\techo 'y'",
    )
    long = await check("shell", context, command="x" * 9_000)
    assert long.permission is not None
    assert len(long.permission) < 250
    assert picture(context.workspace) == {}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"command": ""}, "length >= 1"),
        ({"command": " \n"}, "blank"),
        ({"command": "a\x00b"}, "NUL"),
        ({"command": "a\ud800b"}, "surrogate"),
        ({"command": "x" * 100_001}, "length <= 100000"),
        ({"command": "true", "timeout": 0}, ">= 1"),
        ({"command": "true", "timeout": 601}, "<= 600"),
        ({"command": "true", "timeout": "1"}, "expected `int`"),
    ],
)
async def test_bad_commands_are_refused_at_both_doors(context, arguments, problem):
    operation = FakeOperation(context)
    for door in (
        builtin("shell").precheck(arguments, context),
        builtin("shell").run(arguments, operation),
    ):
        with pytest.raises(ToolRefused, match=problem):
            await door
    assert operation.order == []


async def test_without_a_workspace_nothing_is_dispatched(context):
    context.workspace.rmdir()
    with pytest.raises(ToolRefused, match="not there any more"):
        await check("shell", context, command="true")


async def test_a_workspace_that_goes_at_the_last_moment_is_an_error_result(context):
    operation = FakeOperation(context, on_dispatch=context.workspace.rmdir)
    result = await builtin("shell").run({"command": "true"}, operation)
    assert result.is_error
    assert "can't start a command: no such file" in result.text


@pytest.mark.parametrize(
    ("command", "text", "is_error"),
    [
        ("echo hi", "hi", False),
        ("true", "(no output)", False),
        ("echo a; echo b >&2; echo c", "a\nb\nc", False),
        ("echo no; exit 3", "no\n[exit code 3]", True),
        ("nothing_like_this 2>/dev/null", "[exit code 127]", True),
        ("kill -TERM $$", "[ended by signal 15, SIGTERM]", True),
        ("kill -KILL 0", "[ended by signal 9, SIGKILL]", True),
        (r"printf '\xff\xfe a\0b'", "�� a�b", False),
        ("cat; echo $#", "0", False),
        ("echo 'it'\"'\"'s' \"$HOME\" | cat", None, False),
        ("yes | head -n 2", "y\ny", False),
        ("trap '' PIPE; trap", "trap -- '' SIGPIPE", False),
        ("tty", "not a tty\n[exit code 1]", True),
        ("umask 077; exec sh -c 'echo replaced'", "replaced", False),
    ],
)
async def test_output_and_ending_are_reported(context, command, text, is_error):
    result = await shell(context, command)
    assert result.is_error == is_error
    assert result.text == (text or f"it's {os.environ['HOME']}")


async def test_without_bash_it_is_sh(context, tmp_path):
    bare = attrs.evolve(context, environment={"PATH": str(tmp_path)})
    result = await shell(bare, 'echo "$PATH"; exit 4')
    assert result.text == f"{tmp_path}\n[exit code 4]"


async def test_it_starts_in_the_workspace_with_the_script_intact(context):
    command = "pwd\n" + "\n".join(f"echo line-{number}" for number in range(300))
    lines = (await shell(context, command)).text.split("\n")
    assert lines[0] == str(context.workspace)
    assert lines[1:] == [f"line-{number}" for number in range(300)]


async def test_no_secret_of_the_engine_reaches_a_command(context):
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/home/x",
        "LANG": "C.UTF-8",
        "LC_API_KEY": "s3cr3t",
        "OPENAI_API_KEY": "s3cr3t",
        "GITHUB_TOKEN": "s3cr3t",
        "AWS_SECRET_ACCESS_KEY": "s3cr3t",
        "SSH_AUTH_SOCK": "s3cr3t",
        "HTTPS_PROXY": "http://user:s3cr3t@proxy",
        "BASH_ENV": "/s3cr3t",
        "LD_PRELOAD": "",
    }
    context = attrs.evolve(context, environment=environment)
    lines = (await shell(context, "env; env -0 | tr -d '\\n' >all")).text.split("\n")
    names = {line.partition("=")[0] for line in lines}
    assert names == {
        *("PATH", "HOME", "LANG", "TERM", "PAGER", "GIT_TERMINAL_PROMPT"),
        *("GREENROOM_OPERATION", "PWD", "SHLVL", "_"),
    }
    assert "s3cr3t" not in (context.workspace / "all").read_text()
    assert child_environment({})["PATH"] == os.defpath


@linux
async def test_no_descriptor_of_the_engine_reaches_a_command(context):
    listing = "import os\nfor f in os.listdir('/proc/self/fd'):\n"
    listing += " try: print(os.readlink('/proc/self/fd/' + f))\n except OSError: pass"
    folder = os.open(context.workspace, os.O_RDONLY)
    try:
        result = await shell(context, f'python3 -c "{listing}"')
    finally:
        os.close(folder)
    # Input, the one pipe of output and errors, and the script itself.
    files = {
        line.partition(":")[0].partition(" ")[0] for line in result.text.split("\n")
    }
    assert len(files) == 3
    assert {"/dev/null", "pipe"} < files
    assert str(context.workspace) not in files


#### What stays behind: nothing


DOUBLE_FORK = """python3 -c 'import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
time.sleep(30)'; echo ok"""


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "sleep 30 & echo ok",
        "(sleep 30; echo late) & echo ok",
        "nohup sleep 30 >/dev/null 2>&1 & echo ok",
        "setsid sleep 30 & echo ok",
        "(setsid sh -c 'sleep 30 & sleep 30' &) ; echo ok",
        "trap '' TERM HUP; (trap '' TERM; sleep 30; sleep 30) & echo ok",
        "sh -c 'kill -STOP $$' & echo ok",
        DOUBLE_FORK,
        "while :; do sleep 0.01; done & echo ok",
    ],
)
async def test_what_is_left_in_the_background_is_ended_at_once(context, command):
    before = time.monotonic()
    result = await shell(context, command)
    assert time.monotonic() - before < PROMPTLY
    assert result.text == "ok"
    assert not result.is_error


@linux
async def test_a_process_that_hides_from_every_mark_is_ended(context):
    result = await shell(context, "env -i setsid sleep 30 >/dev/null 2>&1 & echo $!")
    with pytest.raises(ProcessLookupError):
        os.kill(int(result.text), 0)


@pytest.mark.slow
async def test_a_full_error_pipe_and_a_process_that_left_block_nothing(context):
    command = "head -c 1048576 /dev/zero | tr '\\0' e >&2; setsid sleep 30 & echo out"
    before = time.monotonic()
    result = await shell(context, command)
    assert time.monotonic() - before < PROMPTLY
    assert result.text.startswith("eeee")
    assert result.text.endswith("out")
    assert "left out" in result.text


async def test_a_command_that_kills_by_pattern_does_not_hit_its_own_runner(context):
    result = await shell(context, "pkill -f 'sleep 3981'; echo $?")
    assert result.text == "1"


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "outcome"),
    [
        ("setsid sleep 30 & kill -9 $PPID; sleep 30", "[the command killed its own"),
        ("sleep 30 & kill -STOP $PPID; sleep 30", "[timed out after 1 s"),
        ("setsid sleep 30 & kill $PPID; kill -INT $PPID; exit 3", "[exit code 3]"),
    ],
)
async def test_a_command_that_turns_on_its_runner_leaves_nothing(
    context, command, outcome
):
    with trio.fail_after(PROMPTLY):
        result = await shell(context, command, timeout=1)
    assert result.text.startswith(outcome)
    assert list(processes_of(*MADE)) == []


@pytest.mark.slow
async def test_a_timeout_is_its_own_outcome_and_keeps_the_output(context):
    command = "trap 'echo asked; exit 0' TERM; echo begun; sleep 30 & wait"
    before = time.monotonic()
    result = await shell(context, command, timeout=1)
    assert 1 <= time.monotonic() - before < PROMPTLY
    assert result.is_error
    assert result.text == (
        "begun\nasked\n[timed out after 1 s; all that it started was ended]"
    )


@linux
async def test_what_was_stopped_is_woken_to_hear_that_it_is_to_end(context):
    inner = "trap 'echo heard >heard; exit' TERM; kill -STOP $$; :"
    wait = "until grep -q '^State:.T' /proc/$!/status; do :; done"
    await shell(context, f'bash -c "{inner}" & {wait}'.replace("$$", r"\$\$"))
    assert (context.workspace / "heard").read_text() == "heard\n"


@pytest.mark.slow
async def test_what_does_not_listen_is_killed(context):
    before = time.monotonic()
    await shell(context, "trap '' TERM INT HUP; while :; do sleep 1; done", timeout=1)
    assert time.monotonic() - before < PROMPTLY


@linux
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "echo ready; sleep 30",
        "trap '' TERM; setsid sleep 30 & echo ready; sleep 30 & wait; sleep 30",
        "echo ready; sleep 0.1; yes",
    ],
)
async def test_a_cancel_ends_everything_and_passes_on(context, command):
    operation = FakeOperation(context)
    finished = []

    async def run() -> None:
        finished.append(await builtin("shell").run({"command": command}, operation))

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await operation.until_shown("ready")
            before = trio.current_time()
            nursery.cancel_scope.cancel()
    assert trio.current_time() - before < 2
    assert finished == []
    assert list(processes_of(operation.id.hash)) == []


@pytest.mark.slow
async def test_a_cancel_at_any_checkpoint_leaves_nothing(context):
    for steps in range(0, 40, 2):
        operation = FakeOperation(context, request_seq=steps + 1)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    builtin("shell").run, {"command": "echo x; sleep 30"}, operation
                )
                await operation.dispatched.wait()
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        assert list(processes_of(operation.id.hash)) == []


ENGINE = """
import sys, trio
from pathlib import Path
from kit.operations import FakeOperation, builtin, make_context

class Loud(FakeOperation):
    def progress(self, text):
        print(text, end="", flush=True)

async def main():
    operation = Loud(make_context(Path(sys.argv[1])))
    print(operation.id.hash, flush=True)
    await builtin("shell").run({"command": sys.argv[2]}, operation)

trio.run(main)
"""


@asynccontextmanager
async def engine_with(command, folder):
    """Start an engine of its own that runs *command*; yield it, and its marker."""
    engine = await trio.lowlevel.open_process(
        [sys.executable, "-c", ENGINE, folder, command],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert engine.stdout is not None
    said = b""
    try:
        while b"ready" not in said:
            said += await engine.stdout.receive_some()
        marker = said.split()[0].decode()
        MADE.add(marker)
        yield engine, marker
    finally:
        engine.kill()
        await engine.wait()
        await engine.stdout.aclose()


async def until_ended(descriptors):
    with trio.fail_after(PROMPTLY):
        for descriptor in descriptors:
            await trio.lowlevel.wait_readable(descriptor)
            os.close(descriptor)


@linux
@pytest.mark.slow
async def test_when_the_engine_is_killed_its_commands_die(tmp_path):
    command = "trap '' TERM; setsid sleep 30 & (sleep 30 &) ; echo ready; sleep 30"
    async with engine_with(command, tmp_path) as (engine, marker):
        watched = [os.pidfd_open(pid) for pid in processes_of(marker)]
        # The keeper, the shell and what was in the background by then.
        assert len(watched) >= 4
        engine.kill()
        await until_ended(watched)


@linux
@pytest.mark.slow
async def test_when_the_keeper_dies_with_the_engine_the_shell_does_too(tmp_path):
    async with engine_with("echo ready; exec sleep 30", tmp_path) as (engine, marker):
        keeper, leader = sorted(processes_of(marker))
        watched = os.pidfd_open(leader)
        # Stopped, it can't end anything before it is killed.
        os.kill(keeper, signal.SIGSTOP)
        engine.kill()
        os.kill(keeper, signal.SIGKILL)
        await until_ended([watched])


#### Output


@pytest.mark.slow
async def test_endless_output_does_not_grow_memory(context):
    tracemalloc.start()
    try:
        result = await shell(context, "echo begin; yes 0123456789 | head -c 200000000")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 << 20
    assert result.kept is None
    assert len(result.text) < 101_000
    assert result.text.startswith("begin\n0123456789")
    assert "left out" in result.text


@pytest.mark.slow
async def test_progress_is_joined_bounded_and_comes_before_the_end(context):
    command = "for i in 1 2 3 4 5 6 7 8 9; do echo $i; done; read <fifo; echo last"
    os.mkfifo(context.workspace / "fifo")
    operation = FakeOperation(context)
    with trio.fail_after(3):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(builtin("shell").run, {"command": command}, operation)
            await operation.until_shown("1\n2\n3\n4\n5\n6\n7\n8\n9\n")
            assert len(operation.shown) <= 4
            (context.workspace / "fifo").write_text("go\n")
    assert operation.shown[-1] == "last\n"
    assert operation.order[0] == "dispatch"


@pytest.mark.slow
async def test_a_flood_of_output_becomes_a_few_pieces_of_its_end(context):
    operation = FakeOperation(context)
    await builtin("shell").run(
        {"command": "yes | head -c 20000000; printf '\\xc3'; printf '\\xa9'"}, operation
    )
    assert all(len(piece) <= 4_099 for piece in operation.shown)
    assert len(operation.shown) < 100
    assert operation.shown[-1].endswith(("é", "��"))


@pytest.mark.parametrize(
    ("ended", "text"),
    [
        (Ended("", 0, timed_out=False), "(no output)"),
        (Ended("x\n\n", 0, timed_out=False), "x"),
        (Ended("x", -9, timed_out=False), "x\n[ended by signal 9, SIGKILL]"),
        (Ended("", -70, timed_out=False), "[ended by signal 70]"),
        (Ended("", None, timed_out=False), "[the command killed its own runner;"),
        (Ended("x", None, timed_out=True), "x\n[timed out after 5 s;"),
        (Ended("x", 1, timed_out=False), "x\n[exit code 1]"),
    ],
)
def test_endings_in_words(ended, text):
    described, failed = describe(ended, 5)
    assert described.startswith(text)
    assert failed == (ended.code != 0)
