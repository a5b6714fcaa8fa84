"""From a session's events to ``session/update``, for one turn.

*Rule 1*: what the client was told of the turn is known here and nowhere else.
*Rule 2*: it reads events in the order of the feed, and waits for nothing.

Theory of operation. Text is told once, whatever comes twice: of each item the number
of characters told is kept, and a block that is longer than that yields its rest. A
tool call is announced when it is first seen, and from then on only what changed of it
is told, up to its one terminal status. A call that waits for the user is stored as a
success without text, so such a block says nothing about the call until the message
that holds it is durable: then either a question that waits names the call, or it has
ended. `finish` makes up for all that did not come, so a turn never ends with a call
that spins for ever.
"""

from __future__ import annotations

from typing import Any, Final, assert_never, final

import attrs
import msgspec

from ..._events import (
    CompactionChanged,
    Event,
    InputsChanged,
    InteractionSettled,
    MessageRetracted,
    MessagesChanged,
    PlanUpdated,
    SessionSettings,
    SessionUpdated,
    StatusChanged,
    StreamCompleted,
    StreamFailed,
    StreamUpdated,
)
from ..._ids import ItemId
from ..._messages import (
    ActionBlock,
    Block,
    ErrorBlock,
    ImageBlock,
    MessageRecord,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
)
from ._content import ImageContent, TextContent
from ._updates import (
    AgentMessageChunk,
    AgentThoughtChunk,
    CurrentModeUpdate,
    PlanReplaced,
    SessionInfoUpdate,
    SessionUpdate,
    ToolCall,
    ToolCallContent,
    ToolCallFields,
    ToolCallStatus,
    ToolCallUpdate,
    ToolContent,
    ToolDiff,
    ToolLocation,
    WirePlanEntry,
)

MAX_OUTPUT_CHARS: Final = 4_000
"""What is shown of the output of a call that still runs: its end."""

MAX_RAW_INPUT_CHARS: Final = 64_000
MAX_LINE: Final = 2**32 - 1

_TERMINAL: Final = ("completed", "failed")


@attrs.define(eq=False)
class _Call:
    block: ToolCallBlock
    told: ToolCallFields
    output: str = ""
    unsettled: bool = False
    """Its block is the one that a waiting call and an empty result share."""

    @property
    def has_ended(self) -> bool:
        return self.told.status in _TERMINAL


@final
@attrs.define(eq=False)
class Narration:
    """What the client of one turn has been told."""

    settings: SessionSettings
    """As the client knows them."""
    _lengths: dict[ItemId, int] = attrs.field(factory=dict[ItemId, int], init=False)
    """Characters told of each text; of an image, 1."""
    _calls: dict[ItemId, _Call] = attrs.field(factory=dict[ItemId, _Call], init=False)
    _waiting: dict[ItemId, ActionBlock] = attrs.field(
        factory=dict[ItemId, ActionBlock], init=False
    )
    """Questions that are on disk and have no answer, in order."""

    @property
    def waiting(self) -> tuple[ActionBlock, ...]:
        """The questions that wait for the user, the next one first."""
        return tuple(self._waiting.values())

    def updates_of(self, event: Event) -> list[SessionUpdate]:
        """Return what *event* is to the client; mostly one update, or none."""
        match event:
            case StreamUpdated(block=None):
                return self._growth(event)
            case StreamUpdated(block=block):
                return self._block(block)
            case MessagesChanged(message=message):
                return self._message(message)
            case PlanUpdated(plan=plan):
                entries = tuple(WirePlanEntry.of(entry) for entry in plan.entries)
                return [PlanReplaced(entries)]
            case SessionUpdated(settings=settings):
                return self._settings(settings)
            case (
                StatusChanged()
                | MessageRetracted()
                | StreamCompleted()
                | StreamFailed()
                | InteractionSettled()
                | InputsChanged()
                | CompactionChanged()
            ):
                # Ends are told by `MessagesChanged` before them.
                return []
            case _:
                assert_never(event)

    def finish(self, message: MessageRecord | None) -> list[SessionUpdate]:
        """Return what is missing at the end of the turn, whose message this is."""
        updates = [] if message is None else self._message(message)
        for call in self._calls.values():
            if not call.has_ended:
                updates += self._tell(call, status="failed")
        return updates

    def call_of(self, action: ActionBlock) -> ToolCallFields:
        """Return the call that *action* is about, as it is shown with the question."""
        call = self._calls.get(action.tool_block_id)
        if call is None:
            return ToolCallFields(tool_call_id=action.tool_block_id)
        return call.told

    #### Text

    def _growth(self, event: StreamUpdated) -> list[SessionUpdate]:
        if event.kind == "tool_output":
            return self._output(event.item_id, event.text)
        if event.kind not in ("text", "reasoning"):
            return []
        skipped = self._lengths.get(event.item_id, 0) - event.offset
        if skipped < 0:
            # Something is missing before it; the whole block comes later.
            return []
        return self._text(event.item_id, event.kind, event.text[skipped:])

    def _text(self, item_id: ItemId, kind: str, text: str) -> list[SessionUpdate]:
        if not text:
            return []
        self._lengths[item_id] = self._lengths.get(item_id, 0) + len(text)
        make = AgentMessageChunk if kind == "text" else AgentThoughtChunk
        return [make(TextContent(text), item_id)]

    def _image(self, block: ImageBlock) -> list[SessionUpdate]:
        if block.id in self._lengths:
            return []
        self._lengths[block.id] = 1
        return [AgentMessageChunk(ImageContent(block.media_type, block.data), block.id)]

    #### Blocks

    def _block(self, block: Block | None) -> list[SessionUpdate]:
        match block:
            case TextBlock(id=item_id, text=text):
                return self._text(item_id, "text", text[self._told_of(item_id) :])
            case ReasoningBlock(id=item_id, text=text):
                return self._text(item_id, "reasoning", text[self._told_of(item_id) :])
            case ImageBlock():
                return self._image(block)
            case ToolCallBlock():
                return self._call(block)
            case ActionBlock() | ErrorBlock() | None:
                return []
            case _:
                assert_never(block)

    def _told_of(self, item_id: ItemId) -> int:
        return self._lengths.get(item_id, 0)

    def _message(self, message: MessageRecord) -> list[SessionUpdate]:
        if message.role == "user":
            return []
        updates: list[SessionUpdate] = []
        for block in message.blocks:
            if isinstance(block, ActionBlock):
                self._action(block)
            else:
                updates += self._block(block)
        return updates + self._settle_calls()

    def _action(self, block: ActionBlock) -> None:
        if block.status == "pending":
            self._waiting[block.id] = block
            return
        self._waiting.pop(block.id, None)
        call = self._calls.get(block.tool_block_id)
        if block.status == "granted" and call is not None:
            # Its run is still to come.
            call.unsettled = False

    def _settle_calls(self) -> list[SessionUpdate]:
        asked = {action.tool_block_id for action in self._waiting.values()}
        updates: list[SessionUpdate] = []
        for item_id, call in self._calls.items():
            if call.unsettled and item_id not in asked:
                updates += self._tell(call, status="completed")
        return updates

    def _settings(self, settings: SessionSettings) -> list[SessionUpdate]:
        known, self.settings = self.settings, settings
        updates: list[SessionUpdate] = []
        if settings.title != known.title:
            updates.append(SessionInfoUpdate(settings.title))
        if settings.permission_mode != known.permission_mode:
            updates.append(CurrentModeUpdate(settings.permission_mode))
        return updates

    #### Tool calls

    def _call(self, block: ToolCallBlock) -> list[SessionUpdate]:
        call = self._calls.get(block.id)
        status = _status(block)
        if call is None:
            fields = self._fields(block, "", status or "pending")
            self._calls[block.id] = _Call(block, fields, unsettled=status is None)
            return [ToolCall(**_members(fields))]
        if call.has_ended:
            return []
        call.block, call.unsettled = block, status is None
        return self._tell(call, status or call.told.status)

    def _output(self, item_id: ItemId, text: str) -> list[SessionUpdate]:
        call = self._calls.get(item_id)
        if call is None or call.has_ended:
            return []
        call.output = (call.output + text)[-MAX_OUTPUT_CHARS:]
        return self._tell(call, call.told.status)

    def _tell(self, call: _Call, status: ToolCallStatus | None) -> list[SessionUpdate]:
        fields = self._fields(call.block, call.output, status)
        before = _members(call.told)
        changed = {
            name: value
            for name, value in _members(fields).items()
            if name == "tool_call_id" or value != before[name]
        }
        call.told = fields
        if status in _TERMINAL:
            call.unsettled = False
        return [ToolCallUpdate(**changed)] if len(changed) > 1 else []

    def _fields(
        self, block: ToolCallBlock, output: str, status: ToolCallStatus | None
    ) -> ToolCallFields:
        return ToolCallFields(
            tool_call_id=block.id,
            title=block.title or block.name,
            name=block.name,
            kind=block.kind,
            status=status,
            content=self._content(block, output, failed=status == "failed"),
            locations=tuple(
                ToolLocation(self._absolute(place.path), _line(place.line))
                for place in block.locations
            )
            or None,
            raw_input=_raw_input(block.arguments),
        )

    def _content(
        self, block: ToolCallBlock, output: str, *, failed: bool
    ) -> tuple[ToolCallContent, ...] | None:
        content: list[ToolCallContent] = [
            ToolDiff(self._absolute(diff.path), diff.new_text, diff.old_text)
            for diff in block.diffs
        ]
        text = block.response or output
        if text and (failed or not content):
            content.append(ToolContent(TextContent(fenced(text))))
        return tuple(content) or None

    def _absolute(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.settings.workspace}/{path}"


def fenced(text: str) -> str:
    """Return *text* as a block of code, so that Markdown leaves it alone."""
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.rstrip()}\n{fence}"


def _status(block: ToolCallBlock) -> ToolCallStatus | None:
    match block.status:
        case "loading":
            return "in_progress"
        case "error" | "denied":
            return "failed"
        case "success":
            return "completed" if block.response else None
        case _:
            return "pending"


def _members(fields: ToolCallFields) -> dict[str, Any]:
    return msgspec.structs.asdict(fields)


def _line(line: int | None) -> int | None:
    return line if line is not None and 0 <= line <= MAX_LINE else None


def _raw_input(arguments: str) -> Any:  # noqa: ANN401 - a JSON object
    if not arguments or len(arguments) > MAX_RAW_INPUT_CHARS:
        return None
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return None
