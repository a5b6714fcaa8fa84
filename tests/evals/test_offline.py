"""An evaluation calls nobody and writes no file, in a process that would notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Everything is imported before the ban, for imports may write caches of their own.
BANNED = """
import os, socket, sys
import apsw
from greenroom.cli import main

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
EVENTS = (
    "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname",
    "socket.sendto", "socket.sendmsg", "subprocess.Popen", "os.exec", "os.fork",
    "os.posix_spawn", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link",
    "os.symlink", "os.truncate", "os.chmod", "os.utime", "sqlite3.connect",
)

class BannedError(BaseException):
    pass

def ban(event, arguments):
    opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
    if opens or event in EVENTS:
        raise BannedError(f"{event} {arguments}")

def refuse(*_):
    raise BannedError("a database")

sys.addaudithook(ban)
apsw.connection_hooks.append(refuse)

def is_banned(attempt):
    try:
        attempt()
    except BannedError:
        return True
    return False

assert is_banned(lambda: open("planted", "w"))
assert is_banned(lambda: os.mkdir("planted"))
assert is_banned(lambda: apsw.Connection(":memory:"))
with socket.socket() as planted:
    assert is_banned(lambda: planted.connect(("127.0.0.1", 9)))

sys.exit(main(["eval", "--json"]) or main(["eval", "--json"]))
"""


def without_ids_and_times(report: dict[str, Any]) -> dict[str, Any]:
    for result in report["scenarios"]:
        del result["persisted"]["runId"], result["elapsedMs"]
    return report


@pytest.mark.slow  # waits for another process
@pytest.mark.contract("EVL-16")
def test_two_evaluations_under_a_ban_of_sockets_and_writes_are_equal(tmp_path: Path):
    home = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-B", "-P", "-c", BANNED],
        cwd=tmp_path,
        env=home,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["schemaVersion"] == 1
    assert first["aggregate"]["passed"] == 15
    assert without_ids_and_times(first) == without_ids_and_times(second)
    assert list(tmp_path.iterdir()) == []
