"""Messages: what is shown and kept, and what is sent to a provider.

Two forms of one conversation. A `MessageRecord` is what the transcript keeps: one
for the user's input, one for the whole of the assistant's turn, its content in
blocks. A `ChatMessage` is what one request carries: system, user, assistant and
tool messages in the order that providers demand. `view.py` makes the second
from the first; nothing goes back.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ._ids import ItemId, MessageId, OperationId, RunId
from ._journal import RunOutcome

BlockStatus = Literal["pending", "loading", "success", "error", "granted", "denied"]
MessageStatus = Literal["pending", "sent", "error"]
InteractionOrigin = Literal[
    "pre-check-permission",
    "post-call-permission",
    "question",
    "skill-draft-confirmation",
    "acp-permission",
    "budget",
]
InteractionEnd = Literal[
    "granted",
    "denied",
    "answered",
    "expired",
    "cancelled",
    "closed",
    "deleted",
    "process_exit",
    "interrupted",
]
"""How an interaction ended (INT-14). ``expired``: nobody answered in time;
``interrupted``: a restart found it in a turn that could not go on."""

ToolKind = Literal[
    "read", "edit", "delete", "move", "search", "execute", "think", "fetch", "other"
]


class Usage(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """Tokens of one attempt, or a sum of attempts. Unknown is not zero."""

    input: int
    """All input tokens: fresh, read from the cache and written to it."""
    output: int
    """All output tokens, reasoning included."""
    total: int
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None


class Location(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place in a file that a tool touches."""

    path: str
    line: int | None = None


class Diff(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A change to one file; ``old_text`` is ``None`` for a new file."""

    path: str
    new_text: str
    old_text: str | None = None


#### Blocks: the content of a record


class TextBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="text",
    omit_defaults=True,
    rename="camel",
):
    """Text, of the user or of the model."""

    id: ItemId
    text: str
    round: int = 0
    status: BlockStatus = "success"
    options: dict[str, Any] | None = None
    """Provider-bound data, sent back unchanged (TRY-25)."""


class ReasoningBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="reasoning",
    omit_defaults=True,
    rename="camel",
):
    """What the model thought aloud."""

    id: ItemId
    text: str
    round: int = 0
    status: BlockStatus = "success"
    options: dict[str, Any] | None = None


class ImageBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="image",
    omit_defaults=True,
    rename="camel",
):
    """An image, base64."""

    id: ItemId
    media_type: str
    data: str
    round: int = 0
    status: BlockStatus = "success"


class ToolCallBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="tool_call",
    omit_defaults=True,
    rename="camel",
):
    """One tool call that the model announced, and its one result."""

    id: ItemId
    call_id: str
    """The provider's id: data, not identity."""
    name: str
    arguments: str
    """As the provider sent it, JSON or not."""
    round: int = 0
    request_seq: int = 0
    status: BlockStatus = "pending"
    """pending: announced; loading: runs; success or error: has its result."""
    response: str | None = None
    """What the model reads as result; ``None`` while there is none."""
    title: str = ""
    kind: ToolKind = "other"
    locations: tuple[Location, ...] = ()
    diffs: tuple[Diff, ...] = ()
    options: dict[str, Any] | None = None
    note: str | None = None
    """Why a call was not executed, when it was not."""
    in_doubt: OperationId | None = None
    """The operation of a call that a crash cut off, so that it isn't known whether it
    had its effect. The tool may be asked what became of it."""


class QuestionOption(msgspec.Struct, frozen=True, omit_defaults=True):
    """One choice of a question (INT-08)."""

    label: str
    description: str = ""


class BudgetExcess(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """A limit that was reached, or that can't be watched."""

    scope: Literal["turn", "session"]
    kind: Literal["tokens", "money", "seconds"]
    limit: float
    """Tokens, US dollars or seconds, with what was added before."""
    spent: float | None
    """``None``: not known, so that the limit can't be watched. Not zero."""
    raise_by: float
    """What the answer ``raise`` adds to the limit."""


class ActionBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="action",
    omit_defaults=True,
    rename="camel",
):
    """A permission or question that waits for, or had, the user's answer."""

    id: ItemId
    """The interaction's id; answers name it."""
    action: Literal["tool_call_permission", "question_request"]
    origin: InteractionOrigin
    tool_block_id: ItemId
    """The tool call it belongs to; its own id when it belongs to none (a budget)."""
    title: str
    detail: str = ""
    options: tuple[QuestionOption, ...] = ()
    multiple: bool = False
    custom: bool = True
    stop_label: str | None = None
    """The option that ends the turn instead of going on."""
    round: int = 0
    status: BlockStatus = "pending"
    answer: str | None = None
    """What the user said: a reason for a denial, or the answer to a question."""
    end: InteractionEnd | None = None
    """How it ended; `interaction_end` knows it for blocks from before this field."""
    expires_at: float | None = None
    """Seconds since the epoch; then it ends by itself. Absent: it waits for ever."""
    excess: BudgetExcess | None = None
    """What is used up, of a ``budget`` interaction."""


def interaction_end(action: ActionBlock) -> InteractionEnd | None:
    """Return how *action* ended; ``None`` while it waits."""
    if action.end is not None or action.status == "pending":
        return action.end
    ends: dict[BlockStatus, InteractionEnd] = {
        "granted": "granted",
        "denied": "denied",
        "success": "answered",
    }
    return ends.get(action.status, "interrupted")


class ErrorBlock(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="error",
    omit_defaults=True,
    rename="camel",
):
    """Why a turn did not end well."""

    id: ItemId
    code: str
    text: str
    round: int = 0
    status: BlockStatus = "error"


Block = (
    TextBlock | ReasoningBlock | ImageBlock | ToolCallBlock | ActionBlock | ErrorBlock
)


class ProgressSnapshot(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """What the guards remember; kept in the message's metadata (TOL-22)."""

    fingerprint: str
    repeated_batch_count: int = 1
    evidence: Literal["strong", "weak"] = "strong"
    calls_fingerprint: str = ""
    repeated_calls_count: int = 1


class InputReceipt(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """How a user's message was taken in, and when the model was given it."""

    mode: Literal["queue", "steer"]
    read_at: float | None = None
    """Seconds since the epoch; absent while it was not read."""
    input_id: str | None = None
    """The command that brought it, where that is not the message's own id: an input
    that comes back from a failed turn has another message the next time."""


class MessageMetadata(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """What a turn was and cost (RUN-25). Absent means not known."""

    run_id: RunId | None = None
    run_outcome: RunOutcome | None = None
    run_stop_reason: str | None = None
    error_code: str | None = None
    error_text: str | None = None
    provider_rounds: int = 0
    """Logical rounds so far (RUN-05)."""
    max_provider_rounds: int | None = None
    request_seq: int = 0
    tool_calls: int = 0
    no_progress_tool_loop: ProgressSnapshot | None = None
    """What the guards against loops remember."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    """Of the output tokens, those of thinking."""
    cost: float | None = None
    """US dollars; absent when the usage or the price is not known."""
    generation_time: float | None = None
    """Seconds."""
    first_token_time: float | None = None
    """Seconds from the request to its first output."""
    reasoning_start_time: float | None = None
    """Seconds since the epoch: the first thought of the turn."""
    reasoning_end_time: float | None = None
    """Seconds since the epoch: the last thought of the turn."""
    tokens_per_second: float | None = None
    """Output tokens by the seconds that the model was sending."""
    model: str | None = None
    provider: str | None = None
    message_type: Literal["compaction"] | None = None
    """What it is when it is no ordinary message."""
    compaction_status: Literal["compacting", "compacted"] | None = None
    summary_updated_at: float | None = None
    input_receipt: InputReceipt | None = None
    """Of a user's message: how it was taken in."""


class MessageRecord(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """One message of the transcript; every revision of it is a fact (TAP-05).

    As a fact, and as an event, a revision carries the header whole and of the blocks
    only those that are new or changed since the revision before, so that a long turn
    does not write itself again each round; the transcript holds them all, in the order
    of their ids' numbers.
    """

    id: MessageId
    order_seq: int
    """Position in the transcript, from 1."""
    role: Literal["user", "assistant"]
    status: MessageStatus
    blocks: tuple[Block, ...] = ()
    metadata: MessageMetadata = MessageMetadata()
    created_at: float
    updated_at: float


#### Chat messages: the content of a request


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    """Text."""

    text: str


class ImagePart(msgspec.Struct, frozen=True, tag="image", rename="camel"):
    """An image, base64."""

    media_type: str
    data: str


class Reasoning(msgspec.Struct, frozen=True, omit_defaults=True):
    """Thinking that goes back to the provider that sent it."""

    text: str
    options: dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call in an assistant message."""

    id: str
    name: str
    arguments: str
    """A JSON object, always (pairing law)."""
    options: dict[str, Any] | None = None


class SystemMessage(msgspec.Struct, frozen=True, tag="system"):
    """Instructions; only ever the first message."""

    text: str


class UserMessage(msgspec.Struct, frozen=True, tag="user"):
    """What the user said."""

    parts: tuple[TextPart | ImagePart, ...]


class AssistantMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag="assistant", omit_defaults=True
):
    """What the model said in one round."""

    text: str = ""
    reasoning: tuple[Reasoning, ...] = ()
    calls: tuple[ToolCall, ...] = ()


class ToolMessage(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="tool",
    omit_defaults=True,
    rename="camel",
):
    """The result of one call."""

    call_id: str
    name: str
    text: str
    is_error: bool = False


ChatMessage = SystemMessage | UserMessage | AssistantMessage | ToolMessage


class ToolDefinition(msgspec.Struct, frozen=True):
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of an object."""
