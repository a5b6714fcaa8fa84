"""A program whose session has some of everything, and that is killed at rest.

    owner.py STATE WORKSPACE

Writes what the loaded session holds as one line of JSON, then kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import trio

from greenroom.engine import Engine, SessionHandle, open_engine
from greenroom.protocol import StreamUpdated
from greenroom.testing import Call, Halt, Hang, RehearsalProvider, Say

SCRIPT = [
    [Call("shell", {"command": "echo done"}), Halt("tool_use")],
    [Say("It is done."), Halt()],
    [Say("I begin"), Hang()],
]


async def held_of(engine: Engine, session: SessionHandle) -> dict[str, Any]:
    """Return the seven things that a session owns, as the instance holds them."""
    loaded = session._sessions.loaded(session.id)
    assert loaded is not None
    instance = loaded.session
    skills = await engine._readers.read(lambda r: r.skill_selection(session.id))
    return {
        "identity": instance.id,
        "assignment": instance.settings.agent_id,
        "settings": instance.settings,
        "transcript": [*instance.history.records],
        "tape": instance.ports.record.head,
        "pending input": instance.inputs.rows,
        "skills": skills,
    }


async def main(state: Path, workspace: Path) -> None:
    """Fill a session, let an input wait in it, tell of it, die."""
    provider = RehearsalProvider(SCRIPT)
    async with open_engine(state=state, provider=provider) as engine:
        agent = await engine.agents.create("mine")
        source = workspace / "pdf"
        source.mkdir()
        (source / "SKILL.md").write_text(
            "---\nname: pdf\ndescription: About pdf.\n---\nDo pdf."
        )
        await engine.skills.add(source)
        await engine.skills.bind(agent, "pdf")
        session = await engine.create_session(
            agent=agent,
            workspace=workspace,
            title="kept",
            permission_mode="full_access",
            max_rounds=7,
        )
        await engine.skills.select(session.id, ["pdf"])
        await session.prompt("first")
        async with trio.open_nursery() as nursery, session.follow() as feed:
            nursery.start_soon(session.prompt, "second")
            async for event in feed:
                if isinstance(event, StreamUpdated) and event.text:
                    break
            await session.queue("third", command_id="waits")
            await session.cancel()
        told = msgspec.json.encode(await held_of(engine, session))
        os.write(1, told + b"\n")
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), Path(sys.argv[2]))
