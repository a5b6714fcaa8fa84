"""Asking the user: a permission or a question, answered on a terminal.

Reading waits with trio, so it ends with whatever is cancelled around it. What was
typed before a question was shown never answers it: a ``y`` left over from something
else must not grant a permission.
"""

from __future__ import annotations

import os
import termios
from collections.abc import Callable
from typing import Final, final

import attrs
import trio

from greenroom.protocol import ActionBlock, Answer, Deny, Grant, Other, Reply

from ._exit import CliError, ExitCode
from ._harmless import harmless, one_line
from ._words import asked

MAX_LINE_BYTES: Final = 64 * 1024
MAX_PROMPT_BYTES: Final = 1024 * 1024
_MAX_DETAIL_LINES: Final = 60


class UnansweredError(CliError):
    """Nobody is there to answer; the question stays open in the session."""

    code = "unanswered"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"a permission or question could not be answered: {why}",
            exit_code=ExitCode.UNANSWERED,
            hint="answer it in a terminal, or run with --yes to grant permissions",
        )


class NoLineError(CliError):
    """Nothing more can be read."""

    code = "no_line"


class LongLineError(NoLineError):
    """A line is too long; where it ends, and what comes behind it, is not known."""

    code = "long_line"

    def __init__(self) -> None:
        super().__init__(f"a line is longer than {MAX_LINE_BYTES:,} bytes")


@final
@attrs.define(eq=False)
class Lines:
    """Reads lines from *descriptor*, waiting with trio."""

    descriptor: int
    _pending: bytearray = attrs.field(factory=bytearray, init=False)

    @property
    def is_terminal(self) -> bool:
        """Whether somebody types them."""
        return os.isatty(self.descriptor)

    def forget(self) -> None:
        """Drop what was typed and not read."""
        self._pending.clear()
        if self.is_terminal:
            termios.tcflush(self.descriptor, termios.TCIFLUSH)

    async def read(self) -> str:
        """Return the next line, without spaces around it.

        Raises:
            NoLineError: there are no more; `LongLineError`, it is too long.
        """
        while b"\n" not in self._pending:
            if len(self._pending) > MAX_LINE_BYTES:
                raise LongLineError
            await _readable(self.descriptor)
            if not (chunk := self._read_chunk()):
                return self._last()
            self._pending += chunk
        line, _, rest = self._pending.partition(b"\n")
        self._pending = rest
        return line.decode(errors="replace").strip()

    def _last(self) -> str:
        # What a file ends with need not have the end of a line.
        line, self._pending = self._pending.decode(errors="replace"), bytearray()
        if not line.strip() or self.is_terminal:
            raise NoLineError("the input has ended")
        return line.strip()

    # A terminal that was hung up reports an error where a file reports its end.
    def _read_chunk(self) -> bytes:
        try:
            return os.read(self.descriptor, 4_096)
        except OSError:
            return b""


async def _readable(descriptor: int) -> None:
    try:
        await trio.lowlevel.wait_readable(descriptor)
    except OSError:
        # A file on a disk can't be waited for, and need not be.
        await trio.lowlevel.checkpoint()


@final
@attrs.define(eq=False)
class Asker:
    """Asks on a terminal: reads from *lines*, writes with *write*."""

    _lines: Lines
    _write: Callable[[str], object]

    async def ask(self, block: ActionBlock) -> Answer:
        """Show the interaction and return the user's answer.

        Raises:
            UnansweredError: the input is no terminal, or has ended.
        """
        if not self._lines.is_terminal:
            raise UnansweredError("the input is not a terminal")
        self._lines.forget()
        self._write("\n".join(question_lines(block)) + "\n")
        while True:
            self._write(answer_hint(block))
            answer = parse_answer(block, await self._read_line())
            if not isinstance(answer, str):
                return answer
            self._write(f"  {answer}\n")

    async def _read_line(self) -> str:
        try:
            return await self._lines.read()
        except NoLineError as exc:
            raise UnansweredError(str(exc)) from exc


def question_lines(block: ActionBlock) -> list[str]:
    """Return what the user has to know before answering."""
    lines = [f"? {one_line(asked(block), 500)}"]
    # What the title has said in full is not said again.
    said = lines[0].endswith((f"? {block.detail}", f": {block.detail}"))
    detail = [] if said else harmless(block.detail).splitlines()
    lines += [f"  {line}" for line in detail[:_MAX_DETAIL_LINES]]
    if len(detail) > _MAX_DETAIL_LINES:
        lines.append(f"  … {len(detail) - _MAX_DETAIL_LINES} more lines")
    for number, option in enumerate(block.options, 1):
        about = f": {one_line(option.description)}" if option.description else ""
        lines.append(f"  {number}. {one_line(option.label)}{about}")
    return lines


def answer_hint(block: ActionBlock) -> str:
    """Return the line that the user types behind."""
    if block.action == "tool_call_permission":
        return "  allow this? y, n, or why not: "
    ways: list[str] = []
    if block.options:
        ways.append("numbers, as in 1,3" if block.multiple else "a number")
    if block.custom or not block.options:
        ways.append("your own words")
    return f"  {', or '.join(ways)} (o: write a message instead): "


def parse_answer(block: ActionBlock, line: str) -> Answer | str:
    """Return what *line* answers, or a sentence that says why it answers nothing."""
    if not line:
        return "please answer"
    if block.action == "tool_call_permission":
        return _parse_permission(line)
    if line.lower() == "o":
        return Other()
    return _parse_question(block, line)


# Everything that isn't a clear yes is a no, with what was typed as the reason.
def _parse_permission(line: str) -> Answer:
    match line.lower():
        case "y" | "yes":
            return Grant()
        case "n" | "no":
            return Deny()
        case _:
            return Deny(reason=line)


def _parse_question(block: ActionBlock, line: str) -> Answer | str:
    numbers = [part.strip() for part in line.split(",")]
    if not block.options or not all(_is_number(number) for number in numbers):
        if block.custom or not block.options:
            return Reply(text=line)
        return "please choose by number"
    chosen = list(dict.fromkeys(int(number) for number in numbers))
    if len(chosen) > 1 and not block.multiple:
        return "please choose one"
    if not all(1 <= number <= len(block.options) for number in chosen):
        return f"please choose 1 to {len(block.options)}"
    return Reply(text=", ".join(block.options[number - 1].label for number in chosen))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 3


def read_prompt(argument: str, read: Callable[[int], bytes]) -> str:
    """Return the prompt: *argument*, or for ``-`` all that *read* gives, bounded.

    Raises:
        CliError: it is empty or too long.
    """
    raw = read(MAX_PROMPT_BYTES + 1) if argument == "-" else os.fsencode(argument)
    if len(raw) > MAX_PROMPT_BYTES:
        raise CliError(f"the prompt is longer than {MAX_PROMPT_BYTES} bytes")
    text = raw.decode(errors="replace")
    if not text.strip():
        raise CliError("the prompt is empty", hint="say what to do")
    return text
