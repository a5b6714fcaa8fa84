"""What a command that talks with a session shows: the terminal, or lines of JSON."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TextIO, final

import attrs

from greenroom.protocol import ActionBlock, Answer, Event, MessageRecord
from greenroom.protocol.gateway import PromptResult

from ._config import Config
from ._harmless import harmless, json_line
from ._prompts import Asker, Lines
from ._terminal import Terminal, is_capable, wants_color

_STANDARD_INPUT: Final = 0
_COLUMNS: Final = 80
"""Where a terminal does not say how wide it is."""


@final
@attrs.frozen
class Compaction:
    """What came of a compaction that the user asked for."""

    outcome: str
    why: str = ""
    before: int = 0
    after: int = 0
    tokens: int | None = None
    """What asking models took, where that is known."""

    def __str__(self) -> str:
        if self.outcome == "unchanged":
            return f"nothing was changed: {self.why or 'nothing is compacted'}"
        text = f"about {self.before:,} tokens became {self.after:,}"
        return f"compacted: {text}; nothing is lost"


def _never(_: MessageRecord) -> bool:
    return False


# Asked each time: the window may have another size by now.
def _columns_of(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except OSError:
        return _COLUMNS


@final
@attrs.define(eq=False)
class View:
    """The terminal, or lines of JSON."""

    session_id: str
    terminal: Terminal
    asker: Asker
    json: bool

    @classmethod
    def make(
        cls,
        arguments: argparse.Namespace,
        config: Config,
        session_id: str,
        shows_user: Callable[[MessageRecord], bool] = _never,
    ) -> View:
        # With --json standard output is for the lines alone.
        stream = sys.stderr if arguments.json else sys.stdout
        is_terminal = stream.isatty()
        colors = wants_color(config.color, is_terminal=is_terminal, environ=os.environ)
        live = is_capable(is_terminal=is_terminal, environ=os.environ)

        def write(text: str) -> None:
            stream.write(text)
            stream.flush()

        # The asker shows the whole question, and must be understood without the events.
        asks = os.isatty(_STANDARD_INPUT) and not arguments.yes
        terminal = Terminal(
            write,
            colors=colors,
            live=live,
            columns=partial(_columns_of, stream),
            shows_questions=not asks,
            shows_user=shows_user,
        )
        asker = Asker(Lines(_STANDARD_INPUT), terminal.ask)
        return cls(session_id, terminal, asker, arguments.json)

    def begin(self, *, rehearsed: bool) -> None:
        if self.json:
            self.line({"type": "session", "sessionId": self.session_id})
        if rehearsed:
            self.note(
                "no model is configured: a scripted rehearsal answers "
                "(see greenroom run --help, or docs/guides/models.md)"
            )

    def note(self, text: str) -> None:
        if self.json:
            print(harmless(text), file=sys.stderr)
        else:
            self.terminal.note(text)

    def show(self, event: Event) -> None:
        if self.json:
            self.line(event)
        else:
            self.terminal.show(event)

    def end(self, turn: PromptResult) -> None:
        if self.json:
            self.line(
                {
                    "type": "turn",
                    "sessionId": self.session_id,
                    "messageId": turn.message_id,
                    "outcome": turn.outcome,
                    "stopReason": turn.stop_reason,
                    "text": turn.text,
                    "error": turn.error,
                    "usage": turn.usage,
                    "cost": turn.cost,
                }
            )
            return
        self.leave()

    def compacted(self, done: Compaction) -> None:
        if self.json:
            self.line(
                {
                    "type": "compaction",
                    "sessionId": self.session_id,
                    "outcome": done.outcome,
                    "why": done.why,
                    "before": done.before,
                    "after": done.after,
                    "tokens": done.tokens,
                }
            )
            return
        self.terminal.finish()
        self.note(str(done))
        self.leave()

    async def ask(self, block: ActionBlock) -> Answer:
        self.terminal.finish()
        answer = await self.asker.ask(block)
        self.terminal.answered()
        return answer

    def leave(self) -> None:
        self.terminal.finish()
        self.note(f"session {self.session_id}")

    def line(self, value: Any) -> None:  # noqa: ANN401 - any value of the protocol
        """Write one line of JSON."""
        sys.stdout.write(json_line(value))
        sys.stdout.flush()
