"""``greenroom demo``: ten seconds of everything that matters, without a key.

The model is a script and says so; the files, the shell, the processes, the kill and
the recovery are real. It works in a folder of its own, which is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, final

import attrs
import trio

from greenroom.actors.providers import (
    Call,
    Cue,
    Halt,
    Pause,
    RehearsalProvider,
    Reply,
    Say,
    Use,
)
from greenroom.actors.sessions import Follower
from greenroom.engine import SessionHandle, TurnResult, open_engine
from greenroom.protocol import Grant, SessionId, TapeEntry
from greenroom.storage import open_reader

from ._config import Config
from ._exit import CliError, ExitCode
from ._story import format_story, story_lines
from ._terminal import Terminal, is_capable, wants_color

_BEAT: Final = 0.25
"""Seconds between two things, so that a person can follow."""

_FILES: Final = {
    "poem.txt": "The lamp is lit, the chorus waits,\nthe prompter holds the page.\n",
    "cast.txt": "Ada: director\nGrace: stage manager\nAlan: prompter\n",
}
_CHILD_SECONDS: Final = 20.0


def demo_command(arguments: argparse.Namespace, config: Config) -> int:
    """Show greenroom at work in a temporary folder."""
    is_terminal = sys.stdout.isatty()
    colors = wants_color(config.color, is_terminal=is_terminal, environ=os.environ)
    live = is_capable(is_terminal=is_terminal, environ=os.environ)

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="greenroom-demo-") as folder:
        stage = _Stage.make(Path(folder), Terminal(write, colors=colors, live=live))
        return trio.run(stage.run)


@final
@attrs.define(eq=False)
class _Stage:
    state: Path
    workspace: Path
    terminal: Terminal
    _interrupted: bool = False

    @classmethod
    def make(cls, folder: Path, terminal: Terminal) -> _Stage:
        stage = cls(folder / "state", folder / "workspace", terminal)
        stage.workspace.mkdir()
        for name, text in _FILES.items():
            (stage.workspace / name).write_text(text)
        return stage

    async def run(self) -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._heed_ctrl_c, nursery.cancel_scope)
            await self._play()
            nursery.cancel_scope.cancel()
        return ExitCode.INTERRUPTED if self._interrupted else ExitCode.OK

    async def _heed_ctrl_c(self, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                self._interrupted = True
                scope.cancel()

    async def _play(self) -> None:
        self._say(
            "The model below is a script; the files, the shell and the kill are real."
        )
        first = await self._work()
        second = await self._be_killed()
        self._tell(first, "What the tape says of the first session:")
        self._tell(second, "What it says of the session whose engine was killed:")
        self._say("Every step was on disk before the next one began.")

    #### One engine: rounds, parallel reads, a permission, a cancel

    async def _work(self) -> SessionId:
        async with self._engine(_WORK) as engine:
            session = await engine.create_session(
                workspace=self.workspace,
                title="The demo",
                permission_mode="full_access",
                model="script",
            )
            self._scene("1", "several rounds, and two reads at the same time")
            await self._turn(session, "Read both files and tell me what they are.")
            self._scene("2", "a change needs your permission (the demo says yes)")
            await session.configure(permission_mode="default")
            await self._turn(session, "Write a programme, and count its words.")
            self._scene("3", "a command that would take a minute is stopped")
            await self._stopped_turn(session, "Wait for the audience.")
            return session.id

    def _engine(self, script: Sequence[Reply]) -> Any:  # noqa: ANN401 - a context manager
        provider = RehearsalProvider(list(script))
        return open_engine(
            state=self.state, provider=provider, program="greenroom demo"
        )

    async def _turn(self, session: SessionHandle, prompt: str) -> TurnResult:
        self.terminal.note(f"you: {prompt}", "bold")
        async with session.follow() as events, trio.open_nursery() as nursery:
            nursery.start_soon(self._show, events)
            nursery.start_soon(self._grant_all, session)
            turn = await session.prompt(prompt)
            await trio.sleep(_BEAT)
            nursery.cancel_scope.cancel()
        self.terminal.finish()
        return turn

    async def _stopped_turn(self, session: SessionHandle, prompt: str) -> None:
        await session.configure(permission_mode="full_access")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._turn, session, prompt)
            await trio.sleep(1.5)
            self.terminal.note("(Ctrl-C)", "yellow")
            before = trio.current_time()
            await session.cancel()
            spent = trio.current_time() - before
        self.terminal.note(f"stopped in {spent:.2f} s, its processes with it")

    async def _show(self, events: Follower) -> None:
        async for event in events:
            self.terminal.show(event)

    async def _grant_all(self, session: SessionHandle) -> None:
        async with session.follow() as events:
            async for _ in events:
                for block in (await session.interactions())[:1]:
                    await trio.sleep(2 * _BEAT)
                    await session.answer(block.id, Grant())

    #### Another engine, killed and recovered

    async def _be_killed(self) -> SessionId:
        self._scene("4", "an engine is killed in the middle of a command")
        session_id = await self._killed_session()
        self.terminal.note("a new engine opens the same state:")
        async with self._engine(_AFTER) as engine:
            for detail in engine.recovered.details:
                self.terminal.note(f"recovery: {detail.text}", "yellow")
            session = await engine.open_session(session_id)
            await self._turn(session, "What happened?")
            return session.id

    async def _killed_session(self) -> str:
        command = [sys.executable, "-P", "-m", "greenroom.cli._victim"]
        command += [str(self.state), str(self.workspace)]
        async with trio.open_nursery() as nursery:
            process = await nursery.start(_run_child, command)
            assert process.stdout is not None
            lines = _Lines(process.stdout)
            with trio.move_on_after(_CHILD_SECONDS):
                session_id = await lines.next()
                self.terminal.note(f"engine {process.pid} runs: {await lines.next()}")
                await trio.sleep(2 * _BEAT)
                process.send_signal(signal.SIGKILL)
                self.terminal.note(f"kill -9 {process.pid}", "yellow")
                await process.wait()
                nursery.cancel_scope.cancel()
                return session_id
            # Otherwise its long command would be waited for.
            nursery.cancel_scope.cancel()
        raise CliError("the engine of the demo did not start", hint="try again")

    #### Telling

    def _tell(self, session_id: SessionId, title: str) -> None:
        self._say(title)
        for line in format_story(story_lines(_tape(self.state, session_id))):
            self.terminal.note(line, "plain")

    def _scene(self, number: str, text: str) -> None:
        self._say(f"{number}. {text}")

    def _say(self, text: str) -> None:
        self.terminal.finish()
        self.terminal.note("")
        self.terminal.note(text, "cyan")


async def _run_child(
    command: list[str], task_status: trio.TaskStatus[trio.Process]
) -> None:
    await trio.run_process(
        command,
        stdout=subprocess.PIPE,
        check=False,
        process_group=0,  # Ctrl-C is for the demo, which ends its child itself
        task_status=task_status,
    )


@final
@attrs.define(eq=False)
class _Lines:
    """Lines of a child, which is our own and says little."""

    _stream: trio.abc.ReceiveStream
    _buffer: bytes = b""

    async def next(self) -> str:
        while b"\n" not in self._buffer:
            chunk = await self._stream.receive_some(4_096)
            if not chunk:
                raise CliError("the engine of the demo ended too early")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()


def _tape(state: Path, session_id: SessionId) -> list[TapeEntry]:
    with closing(open_reader(state)) as reader:
        return list(reader.page(session_id, 0, 256).entries)


#### The script


def _round(*cues: Cue) -> list[Cue]:
    spent = Use(input=300, output=40)
    return [Pause(_BEAT), *cues, spent]


_WORK: Final[Sequence[Reply]] = (
    _round(Say("First I look around.\n"), Call("list", {}), Halt("tool_use")),
    _round(
        Say("Two files; I read both at once.\n"),
        Call("read", {"path": "poem.txt"}),
        Call("read", {"path": "cast.txt"}),
        Halt("tool_use"),
    ),
    _round(Say("A short poem, and a cast of three.", chunk=6), Halt()),
    _round(
        Call(
            "write", {"path": "programme.md", "content": "# Tonight\n\nThree voices.\n"}
        ),
        Halt("tool_use"),
    ),
    _round(Call("shell", {"command": "wc -w programme.md poem.txt"}), Halt("tool_use")),
    _round(Say("The programme is written; the shell counted the words."), Halt()),
    _round(
        Say("I wait.\n"),
        Call("shell", {"command": "echo waiting; sleep 60"}),
        Halt("tool_use"),
    ),
)

_AFTER: Final[Sequence[Reply]] = (
    _round(
        Say(
            "My last command was cut off by a crash. It had been dispatched, so it is "
            "not known what it did, and nobody runs it again behind your back.",
            chunk=8,
        ),
        Halt(),
    ),
)
