"""``greenroom acp`` as an editor has it: a process, and pipes to its two ends."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from kit.acp_schema import check

PATIENCE = 30.0

PROGRAM = """
import sys
import greenroom.cli._provider as provider
from greenroom.actors.providers import Call, Halt, Hang, RehearsalProvider, Say
from greenroom.cli import main

{before}
provider.rehearsal = lambda: RehearsalProvider({script})
sys.exit(main(sys.argv[1:]))
"""


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which nothing is configured."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GREENROOM_")}
    kept.pop("OPENAI_API_KEY", None)
    return kept | {"TERM": "dumb", "XDG_CONFIG_HOME": "/nonexistent"} | more


def scripted(script: str, before: str = "") -> list[str]:
    """Return the command of a greenroom whose model plays *script*, Python text."""
    program = PROGRAM.format(script=script, before=before)
    return [sys.executable, "-P", "-c", program]


class AgentProcess:
    """One agent; each line it prints is held to the schema."""

    def __init__(
        self, work: Path, script: str = "[]", *, before: str = "", mode: str = "default"
    ) -> None:
        self.work, self.state = work, work.parent / "state"
        self.log = work.parent / "acp.log"
        command = [*scripted(script, before), "acp", "--state", str(self.state)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=work,
                env=environment(GREENROOM_PERMISSION_MODE=mode),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.received: list[dict[str, Any]] = []
        self._methods: dict[Any, str] = {}
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    #### Speaking

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, **message: Any) -> None:
        if "method" in message and "id" in message:
            self._methods[message["id"]] = message["method"]
        self.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")

    def call(self, request_id: Any, method: str, **params: Any) -> dict[str, Any]:
        self.send(id=request_id, method=method, params=params)
        return self.response(request_id)

    def start(self) -> str:
        """Shake hands, make a session in the work folder and return its id."""
        self.call("initialize", "initialize", protocolVersion=1)
        made = self.call("new", "session/new", cwd=str(self.work), mcpServers=[])
        return made["result"]["sessionId"]

    def prompt(self, session_id: str, request_id: Any = "prompt") -> None:
        content = [{"type": "text", "text": "go"}]
        params = {"sessionId": session_id, "prompt": content}
        self.send(id=request_id, method="session/prompt", params=params)

    #### Listening

    def next(self) -> dict[str, Any]:
        line = self._lines.get(timeout=PATIENCE)
        assert line, f"the agent has ended: {self.log.read_text()}"
        message = json.loads(line)
        answers = None if "method" in message else self._methods.get(message["id"])
        if message.get("method") != "$/cancel_request":
            check(message, answers=answers)
        self.received.append(message)
        return message

    def response(self, request_id: Any) -> dict[str, Any]:
        while True:
            message = self.next()
            if "method" not in message and message["id"] == request_id:
                return message

    def until(self, method: str, **update: Any) -> dict[str, Any]:
        """Read on to a message of *method*, an update with these members."""
        while True:
            message = self.next()
            told = message.get("params", {}).get("update", {})
            if message.get("method") == method and update.items() <= told.items():
                return message

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    #### Ending

    def hang_up(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def leaves(self) -> tuple[int, float]:
        """Wait for its end; return its status and how long that took."""
        started = time.monotonic()
        status = self.process.wait(timeout=PATIENCE)
        return status, time.monotonic() - started

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended; only its parent has not looked yet.
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def wait_for(path: Path) -> str:
    """Return what a file holds, once it holds anything."""
    deadline = time.monotonic() + PATIENCE
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text()
