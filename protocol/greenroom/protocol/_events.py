"""What watchers of a session are told: a closed, versioned union (SES-24).

*Durable* events carry the sequence number of the fact they were made from, so a
watcher that comes back with it misses nothing. *Transient* events carry none: they
belong to an item and its offset, are joined for at most 20 ms and never replayed;
a block snapshot makes up for any that were missed.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ._agent_config import Names
from ._budget import Budget
from ._ids import ItemId, MessageId, RunId, SessionId
from ._messages import Block, InteractionEnd, MessageRecord
from ._pending import PendingInput

EVENTS_VERSION: Final = 1

SessionState = Literal["idle", "generating", "error"]
WaitReason = Literal[
    "connect",
    "first_byte",
    "stream",
    "backoff",
    "rate_gate",
    "tool",
    "compaction",
    "review",
    "permission",
    "question",
    "cleanup",
]


class PlanEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of a plan."""

    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"
    priority: Literal["high", "medium", "low"] = "medium"


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole plan; a newer revision replaces it."""

    revision: int
    entries: tuple[PlanEntry, ...]
    reason: Literal["max_steps"] | None = None
    """Why it goes no further: its turn ran into a limit (RUN-19)."""


class SessionSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """What a session durably knows of itself (SES-13)."""

    agent_id: str
    title: str
    workspace: str
    """Absolute path of the folder that file tools may touch."""
    provider: str
    model: str
    permission_mode: Literal["default", "auto_approve", "full_access"] = "default"
    system_prompt: str = ""
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    context_length: int | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    max_rounds: int | None = None
    """Round limit of a run; absent or not positive means none (RUN-06)."""
    permission_seconds: float | None = None
    """How long a permission waits for its answer; absent: for ever (INT-14)."""
    question_seconds: float | None = None
    """The same for every other interaction."""
    turn_budget: Budget | None = None
    """What a turn may use before the user is asked."""
    session_budget: Budget | None = None
    """What all turns of the session may use before the user is asked."""
    disabled_tools: Names = ()
    """Tools that runs neither offer nor start, whoever calls them (DEL-11)."""


#### Transient


def rate_limit_notice(run_id: RunId) -> ItemId:
    """Return the id of the notice that *run_id* waits for the rate gate."""
    return ItemId(f"__rate_limit__:{run_id}")


class StreamUpdated(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="stream/updated",
    omit_defaults=True,
    rename="camel",
):
    """An item grew by ``text`` at ``offset``, or is now ``block``."""

    session_id: SessionId
    run_id: RunId
    message_id: MessageId
    item_id: ItemId
    kind: Literal["text", "reasoning", "tool_call", "tool_output", "action", "error"]
    offset: int = 0
    """Characters of the item before ``text``."""
    text: str = ""
    block: Block | None = None
    """The whole block, when it changed in another way than by growing."""


class StatusChanged(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="session/status_changed",
    omit_defaults=True,
    rename="camel",
):
    """The session's state; of two, the one with the higher version holds (SES-22)."""

    session_id: SessionId
    version: int
    state: SessionState
    run_id: RunId | None = None
    waiting_for: WaitReason | None = None
    remaining: float | None = None
    """Seconds until the wait ends by itself."""
    notice: ItemId | None = None
    """The item that tells of the wait for the rate gate, as long as it lasts (TRY-20).
    It is no part of the message and never stored."""


#### Durable


class MessagesChanged(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="session/messages_changed",
    rename="camel",
):
    """A message has a new revision."""

    session_id: SessionId
    seq: int
    message: MessageRecord


class MessageRetracted(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="session/message_retracted",
    rename="camel",
):
    """A message left the transcript: it was taken back, or never had its turn."""

    session_id: SessionId
    seq: int
    message_id: MessageId


class StreamCompleted(
    msgspec.Struct, frozen=True, kw_only=True, tag="stream/completed", rename="camel"
):
    """A turn ended well; ``message`` is its last revision."""

    session_id: SessionId
    seq: int
    message: MessageRecord


class StreamFailed(
    msgspec.Struct, frozen=True, kw_only=True, tag="stream/failed", rename="camel"
):
    """A turn was aborted or ended in an error; ``message`` is its last revision."""

    session_id: SessionId
    seq: int
    message: MessageRecord


class InteractionSettled(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="interaction/settled",
    rename="camel",
):
    """A permission or question waits no longer; once for each (INT-14)."""

    session_id: SessionId
    seq: int
    message_id: MessageId
    interaction_id: ItemId
    end: InteractionEnd


class PlanUpdated(
    msgspec.Struct, frozen=True, kw_only=True, tag="plan/updated", rename="camel"
):
    """The plan was replaced."""

    session_id: SessionId
    seq: int
    plan: Plan


class SessionUpdated(
    msgspec.Struct, frozen=True, kw_only=True, tag="session/updated", rename="camel"
):
    """The session's settings changed."""

    session_id: SessionId
    seq: int
    settings: SessionSettings


class InputsChanged(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="session/inputs_changed",
    rename="camel",
):
    """A pending input has a new revision; one that is consumed has left (PIN-01)."""

    session_id: SessionId
    seq: int
    input: PendingInput
    """Its parts are absent where they did not change."""


class CompactionChanged(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="session/compaction_changed",
    omit_defaults=True,
    rename="camel",
):
    """What the model is shown begins elsewhere; the transcript is the same (CTX-20)."""

    session_id: SessionId
    seq: int
    trigger: str
    """``auto``, ``resume``, ``manual``, ``context_pressure``, or what else moved it."""
    outcome: Literal["summarized", "boundary_only", "undone", "reset"]
    cursor: int
    """The first place of the transcript that is shown."""
    tokens_before: int | None = None
    """An estimate of what is hidden now."""
    tokens_after: int | None = None
    """An estimate of what stands for it."""
    summary: str = ""
    reason: str = ""
    """Why there is no summary of what is newly hidden."""


Event = (
    StreamUpdated
    | StatusChanged
    | MessagesChanged
    | MessageRetracted
    | StreamCompleted
    | StreamFailed
    | InteractionSettled
    | PlanUpdated
    | SessionUpdated
    | InputsChanged
    | CompactionChanged
)


class Interaction(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pending permission or question, as a client sees it."""

    session_id: SessionId
    message_id: MessageId
    block: Block
    tool: Block | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a watcher starts: everything up to ``seq``, then the live feed."""

    session_id: SessionId
    seq: int
    incarnation: str
    """Of the tape; one that was cleared begins anew, and counts from 1 again."""
    settings: SessionSettings
    state: SessionState
    status_version: int
    messages: tuple[MessageRecord, ...]
    """The newest page, oldest first; a message in progress as it is now."""
    plan: Plan | None = None
    inputs: tuple[PendingInput, ...] = ()
    """What waits for its turn, in the order in which it is let in."""

    @property
    def status(self) -> StatusChanged:
        """The status as it was then, to be held or ignored like any other."""
        return StatusChanged(
            session_id=self.session_id, version=self.status_version, state=self.state
        )


def newest_status(held: StatusChanged | None, told: StatusChanged) -> StatusChanged:
    """Return which of two statuses of a session a client holds (SES-22).

    The one that it has, if that is newer than what it is *told*. Of equal versions the
    later word counts: it says how long a wait still takes.
    """
    return told if held is None or held.version <= told.version else held
