"""Live events on a terminal, or as plain text where there is none.

Everything is shown once: a block that arrives whole after it arrived in pieces adds
only what was missed, so events may repeat and a watcher may come back. Colour and
the passing status line are for a terminal; without one each line stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, assert_never, final

import attrs
import msgspec

from greenroom.protocol import (
    ActionBlock,
    Block,
    CompactionChanged,
    ErrorBlock,
    Event,
    ImageBlock,
    InputsChanged,
    InteractionSettled,
    ItemId,
    MessageId,
    MessageRecord,
    MessageRetracted,
    MessagesChanged,
    Plan,
    PlanUpdated,
    ReasoningBlock,
    RunId,
    SessionUpdated,
    StatusChanged,
    StreamCompleted,
    StreamFailed,
    StreamUpdated,
    TextBlock,
    ToolCallBlock,
    newest_status,
)

from ._diff import diff_lines
from ._harmless import harmless, one_line
from ._words import (
    LONG_WAITS,
    advice_words,
    answer_words,
    asked,
    compaction_words,
    ending_words,
    wait_words,
)

Style = Literal["plain", "dim", "bold", "red", "green", "yellow", "cyan"]

_CODES: Final[Mapping[Style, int]] = {
    "dim": 2,
    "bold": 1,
    "red": 31,
    "green": 32,
    "yellow": 33,
    "cyan": 36,
}
_DIFF_STYLES: Final[Mapping[str, Style]] = {
    "header": "bold",
    "hunk": "cyan",
    "added": "green",
    "removed": "red",
    "context": "dim",
}
_PLAN_MARKS: Final = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}
_CLEAR_LINE: Final = "\r\x1b[K"


def is_capable(*, is_terminal: bool, environ: Mapping[str, str]) -> bool:
    """Whether escape sequences may be written at all."""
    return is_terminal and environ.get("TERM", "") not in ("", "dumb")


def wants_color(mode: str, *, is_terminal: bool, environ: Mapping[str, str]) -> bool:
    """Whether to use colour: what was configured, else NO_COLOR and the terminal."""
    if mode != "auto":
        return mode == "always"
    no_color = bool(environ.get("NO_COLOR"))
    return is_capable(is_terminal=is_terminal, environ=environ) and not no_color


def _never(_: MessageRecord) -> bool:
    return False


def _eighty() -> int:
    return 80


@final
@attrs.define(eq=False)
class Terminal:
    """Shows the events of one session in the order they come.

    Not for tasks to share: whoever follows the session calls `show`.
    """

    _write: Callable[[str], object]
    _colors: bool = attrs.field(default=False, kw_only=True, alias="colors")
    _live: bool = attrs.field(default=False, kw_only=True, alias="live")
    """Whether a line may be taken back: a status that passes."""
    _columns: Callable[[], int] = attrs.field(
        default=_eighty, kw_only=True, alias="columns"
    )
    """How wide the terminal is now: a status that passes has to fit on one line."""
    _shows_questions: bool = attrs.field(
        default=True, kw_only=True, alias="shows_questions"
    )
    """Not where whoever asks shows the whole question."""
    _shows_user: Callable[[MessageRecord], bool] = attrs.field(
        default=_never, kw_only=True, alias="shows_user"
    )
    """Whether a message of the user's is news to whoever watches."""

    _message_id: MessageId | None = None
    _said: MessageId | None = None
    """The message of the user's that was shown last."""
    # Of the current message only; a new one clears both.
    _shown: dict[ItemId, int] = attrs.field(factory=dict[ItemId, int])
    """Characters of each growing item that are on the screen."""
    _statuses: dict[ItemId, str] = attrs.field(factory=dict[ItemId, str])
    """What was last said of each call, question and error."""
    _open_item: ItemId | None = None
    """The item that the cursor stands right behind."""
    _at_line_start: bool = True
    _has_status_line: bool = False
    _status: StatusChanged | None = None
    _plan_revision: int = -1
    _ended: tuple[RunId | None, str | None] | None = None

    def show(self, event: Event) -> None:
        """Write what is new in *event*.

        Raises:
            OSError: whatever the writer raises; the terminal is gone.
        """
        match event:
            case StreamUpdated():
                self._enter(event.message_id)
                self._show_growth(event)
            case MessagesChanged():
                self._show_message(event.message)
            case StreamCompleted() | StreamFailed():
                self._show_message(event.message)
                self._show_ending(event.message)
            case StatusChanged():
                self._show_status(event)
            case PlanUpdated():
                self._show_plan(event.plan)
            case CompactionChanged():
                self.note(compaction_words(event))
            case (
                SessionUpdated()
                | InteractionSettled()
                | InputsChanged()
                | MessageRetracted()
            ):
                # The answer is shown with its message.
                pass
            case _:
                assert_never(event)

    def show_past(self, messages: Sequence[MessageRecord]) -> None:
        """Write what was said before, oldest first."""
        for message in messages:
            self._show_message(message)
            if message.role == "assistant" and message.status != "pending":
                self._show_ending(message)

    def note(self, text: str, style: Style = "dim") -> None:
        """Write a line of the command's own; what it quotes is made harmless."""
        self._line(style, harmless(text))

    def ask(self, text: str) -> None:
        """Write *text* of a question; the cursor may stay behind it."""
        self._clear_status_line()
        self._write(text)
        self._at_line_start = text.endswith("\n")

    def answered(self) -> None:
        """Note that the user has ended the line that the cursor stood in."""
        self._at_line_start = True

    def finish(self) -> None:
        """Leave the cursor at the start of an empty line."""
        self._clear_status_line()
        self._end_line()

    #### Blocks

    def _enter(self, message_id: MessageId) -> None:
        if message_id != self._message_id:
            self._message_id = message_id
            self._shown.clear()
            self._statuses.clear()
            self._open_item = None

    def _show_message(self, message: MessageRecord) -> None:
        if message.role == "user":
            if self._shows_user(message) and message.id != self._said:
                self._said = message.id
                self._show_said(message)
            return
        self._enter(message.id)
        for block in message.blocks:
            self._show_block(block)

    def _show_said(self, message: MessageRecord) -> None:
        for block in message.blocks:
            match block:
                case TextBlock():
                    first, *rest = harmless(block.text).splitlines() or [""]
                    self._line("bold", f"user: {first}")
                    for line in rest:
                        self._line("bold", f"      {line}")
                case _:
                    self._show_block(block)

    def _show_growth(self, event: StreamUpdated) -> None:
        if event.block is not None:
            self._show_block(event.block)
        elif event.kind in ("text", "reasoning", "tool_output"):
            style: Style = "plain" if event.kind == "text" else "dim"
            self._grow(event.item_id, style, event.offset, event.text)

    def _show_block(self, block: Block) -> None:
        match block:
            case TextBlock():
                self._grow(block.id, "plain", 0, block.text)
            case ReasoningBlock():
                self._grow(block.id, "dim", 0, block.text)
            case ToolCallBlock():
                self._show_call(block)
            case ActionBlock():
                self._show_action(block)
            case ErrorBlock():
                if self._is_news(block.id, block.code):
                    self._line("red", f"! {one_line(block.text, 2_000)}")
            case ImageBlock():
                if self._is_news(block.id, block.status):
                    size = len(block.data) * 3 // 4
                    self._line("dim", f"[{one_line(block.media_type)}, {size:,} bytes]")
            case _:
                assert_never(block)

    def _grow(self, item_id: ItemId, style: Style, offset: int, text: str) -> None:
        shown = self._shown.get(item_id, 0)
        fresh = text[max(0, shown - offset) :]
        if not fresh:
            return
        if self._open_item != item_id:
            self._end_line()
            self._open_item = item_id
        if offset > shown:
            fresh = "…" + fresh
        self._shown[item_id] = offset + len(text)
        self._put(style, harmless(fresh))

    def _show_call(self, block: ToolCallBlock) -> None:
        label = one_line(block.title or block.name)
        first = block.id not in self._statuses
        if not self._is_news(block.id, block.status):
            return
        if first:
            name = "" if label == block.name else f"{one_line(block.name)}: "
            self._line("cyan", f"> {name}{label}")
            self._show_diffs(block)
        if block.status == "success" and block.response:
            self._line("green", f"  ok: {label}")
        elif block.status == "error":
            why = block.note or block.response or "no reason given"
            self._line("red", f"  failed: {label}: {one_line(why, 400)}")

    def _show_diffs(self, block: ToolCallBlock) -> None:
        for diff in block.diffs:
            for style, text in diff_lines(diff):
                self._line(_DIFF_STYLES[style], f"  {harmless(text)}")

    def _show_action(self, block: ActionBlock) -> None:
        if not self._is_news(block.id, block.status):
            return
        answer = f": {one_line(block.answer)}" if block.answer else ""
        if block.status == "pending":
            if self._shows_questions:
                self._line("yellow", f"? {one_line(asked(block), 500)}")
        else:
            self._line("dim", f"  {answer_words(block)}{answer}")

    def _is_news(self, item_id: ItemId, status: str) -> bool:
        known = self._statuses.get(item_id)
        self._statuses[item_id] = status
        return known != status

    #### The session

    def _show_ending(self, message: MessageRecord) -> None:
        metadata = message.metadata
        ending = metadata.run_id, metadata.run_outcome
        if ending == self._ended:
            return
        self._ended = ending
        style: Style = "red" if metadata.run_outcome == "error" else "dim"
        if _has_told(message.blocks, metadata.error_text):
            metadata = msgspec.structs.replace(metadata, error_text=None)
        self._line(style, one_line(ending_words(metadata), 2_000))
        advice = advice_words(message.metadata)
        if advice is not None:
            self._line("dim", advice)

    def _show_status(self, status: StatusChanged) -> None:
        self._status = newest_status(self._status, status)
        if self._status is not status:
            return
        words = wait_words(status)
        if self._live:
            self._show_passing(words)
        elif words is not None and status.waiting_for in LONG_WAITS:
            self._line("dim", words)

    # In the middle of a line there is no room for a status, and it isn't missed.
    def _show_passing(self, words: str | None) -> None:
        self._clear_status_line()
        # What wraps could not be taken back. The last column stays free: some
        # terminals go on to the next line when it is filled.
        room = self._columns() - 1
        if words is not None and self._at_line_start and room > 1:
            self._write(self._painted("dim", one_line(words, room)))
            self._has_status_line = True

    def _show_plan(self, plan: Plan) -> None:
        if plan.revision <= self._plan_revision:
            return
        self._plan_revision = plan.revision
        self._line("bold", "plan:")
        for entry in plan.entries:
            style: Style = "dim" if entry.status == "completed" else "plain"
            self._line(
                style, f"  {_PLAN_MARKS[entry.status]} {one_line(entry.content)}"
            )

    #### Writing

    def _line(self, style: Style, text: str) -> None:
        self._end_line()
        self._put(style, text)
        self._end_line()

    def _end_line(self) -> None:
        if not self._at_line_start:
            self._put("plain", "\n")
        self._open_item = None

    def _put(self, style: Style, text: str) -> None:
        self._clear_status_line()
        self._write(self._painted(style, text))
        self._at_line_start = text.endswith("\n")

    def _clear_status_line(self) -> None:
        if self._has_status_line:
            self._write(_CLEAR_LINE)
            self._has_status_line = False

    def _painted(self, style: Style, text: str) -> str:
        if not self._colors or style == "plain" or text == "\n":
            return text
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def _has_told(blocks: Sequence[Block], error: str | None) -> bool:
    return any(
        isinstance(block, ErrorBlock) and block.text == error for block in blocks
    )
