"""Engines for the kill tests, as programs.

    child.py victim STATE WORKSPACE      plays turns until it is killed
    child.py neighbour STATE WORKSPACE   plays a turn for each line of its input

A victim writes a line for everything that it was told is durable, at that moment. With
``KILL_AT`` it kills itself before or after one write: ``before commit:ToolOutcome 1``.
A turn asks a model twice and runs shell commands, one or as many as ``CALLS`` says; the
effect of each is a line in the file ``effects``: the operation's marker.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import attrs
import trio

from greenroom.engine import SessionHandle, open_engine
from greenroom.protocol import ModelRequest, UserMessage, journal_fact
from greenroom.testing import Call, Halt, RehearsalProvider, Reply, Say, Use

EFFECT = 'echo "$GREENROOM_OPERATION" >> effects; sleep 0.02; echo done'


def reply(request: ModelRequest) -> Reply:
    """Ask for the commands after each prompt, then say that it is done."""
    if isinstance(request.messages[-1], UserMessage):
        calls = [Call("shell", {"command": EFFECT})] * int(os.environ.get("CALLS", "1"))
        return [Say("I do it."), *calls, Halt("tool_use")]
    return [Say("done"), Use(input=10, output=2), Halt()]


def say(line: str) -> None:
    """Write a line at once, past every buffer: the next step may be the last."""
    os.write(1, f"{line}\n".encode())


def die() -> NoReturn:
    """End as a process does that is killed."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@attrs.define(eq=False)
class Doomed:
    """A session's record that tells what is durable, and dies where it is told to."""

    inner: Any
    point: str
    """When, what and the how manieth: ``after append:message/recorded 2``."""
    seen: dict[str, int] = attrs.field(factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def post(self, command_id: str, body: str) -> Any:
        point = self.reach("post")
        posted = await self.inner.post(command_id, body)
        say(f"posted {command_id}")
        self.leave(point)
        return posted

    async def append(self, facts: Any, settles: Any = ()) -> None:
        point = self.reach(f"append:{facts[0].name}")
        await self.inner.append(facts, settles)
        for fact in facts:
            say(f"told {fact.key}")
        self.leave(point)

    async def commit(self, record: Any) -> bool:
        point = self.reach(f"commit:{type(record).__name__}")
        created = await self.inner.commit(record)
        say(f"told {journal_fact(record).key}")
        self.leave(point)
        return created

    def reach(self, what: str) -> str:
        number = self.seen[what] = self.seen.get(what, 0) + 1
        point = f"{what} {number}"
        if self.point == f"before {point}":
            die()
        return point

    def leave(self, point: str) -> None:
        if self.point == f"after {point}":
            die()


def doom(session: SessionHandle, point: str) -> None:
    """Put a `Doomed` between the loaded session and its record."""
    loaded = session._sessions.loaded(session.id)
    assert loaded is not None
    behaviour = loaded.session
    record: Any = Doomed(behaviour.ports.record, point)
    behaviour.ports = attrs.evolve(behaviour.ports, record=record)


async def main(role: str, state: str, workspace: str) -> None:
    """Play the part."""
    async with open_engine(
        state=state, provider=RehearsalProvider(reply), program=role
    ) as engine:
        session = await engine.create_session(
            workspace=Path(workspace), permission_mode="full_access"
        )
        say(f"session {session.id}")
        if role == "victim":
            doom(session, os.environ.get("KILL_AT", ""))
            while True:
                await session.prompt("go")
        while await trio.to_thread.run_sync(sys.stdin.readline):
            say(f"turn {(await session.prompt('go')).outcome}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
