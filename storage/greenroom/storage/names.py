"""Names of the facts that the store itself understands, and how they are made.

Everything else on a tape is kept and returned, never interpreted. Keys are chosen
so that the same thing said twice is one fact and two things are two: a revision's
key holds a hash of its content (TAP-02).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from greenroom.protocol import (
    MAX_SAFE_INTEGER,
    ContributionMade,
    Fact,
    FactKind,
    MessageId,
    MessageRecord,
    OperationId,
    PendingInput,
    Plan,
    RunId,
    SessionId,
    SessionSettings,
    SourceType,
    ToolCallBlock,
    canonical_json,
    sha256_hex,
)

SESSION_START: Final = "session/start"
SESSION_CONFIGURED: Final = "session/configured"
SESSION_ARCHIVED: Final = "session/archived"
SESSION_FORKED: Final = "session/forked"
SESSION_REWOUND: Final = "session/rewound"
MESSAGE_RECORDED: Final = "message/recorded"
MESSAGE_RETRACTED: Final = "message/retracted"
COMPACTION_INDICATOR: Final = "message/compaction_indicator"
PLAN_UPDATED: Final = "plan/updated"
INPUT_RECORDED: Final = "input/recorded"
RUN_ACKNOWLEDGED: Final = "recovery/run_acknowledged"
OPERATION_RECONCILED: Final = "recovery/operation_reconciled"
VIEW_ASSEMBLED: Final = "view/assembled"
MEMORY_CONTRIBUTED: Final = "view/memory_contributed"
ATTEMPT_COMPLETED: Final = "provider/attempt_completed"
ENDPOINT_RECEIVED: Final = "endpoint/received"

TAPE_LINKED: Final = "subagent/tape_linked"
FORK_START: Final = "fork/start"
FORK_MERGE: Final = "fork/merge"
FORK_DISCARD: Final = "fork/discard"
CONTEXT_PRESSURE: Final = "provider/context_pressure"
BACKFILLED: Final = "migration/backfill"
MODEL_CALLED: Final = "compaction/model_call_completed"

FOUND_BY_NAME: Final = (
    "compaction/auto",
    "compaction/context_pressure",
    "compaction/manual",
    "compaction/migrated_summary",
    "compaction/resume",
    FORK_DISCARD,
    FORK_MERGE,
    FORK_START,
    BACKFILLED,
    SESSION_REWOUND,
    TAPE_LINKED,
    "summary/reset",
    "auto_handoff/context_overflow",
    CONTEXT_PRESSURE,
    MODEL_CALLED,
)
"""Names that `Reader.named` finds. They are rare, so that the way to them costs other
facts nothing; another name is a step of the schema."""

STRICT_NAMES: Final = frozenset({TAPE_LINKED, RUN_ACKNOWLEDGED})
"""Names where another payload under an existing key is a conflict (TAP-02)."""

_AUDIT_NAMES: Final = frozenset(
    {
        MESSAGE_RETRACTED,
        SESSION_FORKED,
        SESSION_REWOUND,
        COMPACTION_INDICATOR,
        BACKFILLED,
        RUN_ACKNOWLEDGED,
        OPERATION_RECONCILED,
    }
)
_AUDIT_PREFIXES: Final = ("execution/", "view/", "provider/", "input/", "endpoint/")


class Retracted(msgspec.Struct, frozen=True, rename="camel"):
    """Payload of ``message/retracted``: the message leaves transcript and view."""

    message_id: MessageId


class CompactionIndicator(msgspec.Struct, frozen=True, rename="camel"):
    """Payload of ``message/compaction_indicator``: where somebody compacted (TAP-07).

    An event that has no place of its own in the transcript, so no message moves for it.
    """

    before_order_seq: int
    """The place of the message that it stands before."""


class SpentTokens(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider counted."""

    input: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INTEGER)]
    output: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INTEGER)]
    total: Annotated[int, msgspec.Meta(ge=0, le=MAX_SAFE_INTEGER)]


class ModelCalled(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the store reads of ``compaction/model_call_completed`` (CTX-24)."""

    status: Literal["completed", "failed", "aborted"] = "completed"
    usage: SpentTokens | None = None
    cost: float | None = None
    """US dollars; absent when the price is not known."""
    message_id: MessageId | None = None
    """The turn that it is part of, whose usage it is in; absent: the session's own."""


class Archived(msgspec.Struct, frozen=True):
    """Payload of ``session/archived``: whether the session is out of the way."""

    archived: bool


class Forked(msgspec.Struct, frozen=True, rename="camel"):
    """Payload of ``session/forked``: whose messages this session began with."""

    session_id: SessionId
    message_id: MessageId | None
    """The last one that was looked at; absent: all."""


class Rewound(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Payload of ``session/rewound``: how far the conversation was taken back."""

    through: MessageId | None
    """The message that was the last one then; ``None``: there was none."""
    messages: int
    """How many were taken back."""
    files: tuple[str, ...] = ()
    """Files that were put back before, relative to the workspace."""


class RunAcknowledged(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Payload of ``recovery/run_acknowledged``: the run was reported (JRN-20)."""

    run_id: RunId
    run_class: str
    reason: str | None = None


class OperationReconciled(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Payload of ``recovery/operation_reconciled``: its tool knew what became of it."""

    operation: OperationId
    message_id: MessageId
    response_hash: str
    is_error: bool


def is_strict(name: str) -> bool:
    """Whether facts of this *name* treat a difference as a conflict."""
    return name in STRICT_NAMES


def check_findable(name: str) -> None:
    """Refuse a *name* that entries can't be found by.

    Raises:
        ValueError: it is not one of `FOUND_BY_NAME`.
    """
    if name not in FOUND_BY_NAME:
        known = ", ".join(FOUND_BY_NAME)
        raise ValueError(f"entries can't be found by {name[:80]!r}; there is {known}")


def is_audit(name: str) -> bool:
    """Whether facts of this *name* stay out of search and view (TAP-10)."""
    return name in _AUDIT_NAMES or name.startswith(_AUDIT_PREFIXES)


def bootstrap_facts(
    incarnation: str, settings: SessionSettings, *, parent: SessionId | None = None
) -> tuple[Fact, ...]:
    """Return the facts a tape begins with: its anchor, then its settings (TAP-03).

    *incarnation* is a fresh UUID: a tape that is cleared begins again with another.
    *parent* is the session whose child this one is, if it is one (TAP-13).
    """
    start = start_fact(incarnation, parent=parent)
    return start, settings_fact(settings, revision=incarnation)


def start_fact(incarnation: str, *, parent: SessionId | None = None) -> Fact:
    """Return the anchor that a tape begins with; see `bootstrap_facts`."""
    whose = {} if parent is None else {"parentSessionId": parent}
    return Fact(
        kind=FactKind.ANCHOR,
        name=SESSION_START,
        source_type=SourceType.SESSION,
        source_id=incarnation,
        meta=canonical_json({"incarnation": incarnation} | whose),
    )


def contribution_fact(made: ContributionMade) -> Fact:
    """Return what became of the agent's memory in a turn; not what it said (SKL-07)."""
    manifest = {
        "messageId": made.message_id,
        "state": made.state,
        "characters": len(made.text),
        "hash": sha256_hex(made.text),
    }
    return Fact(
        kind=FactKind.EVENT,
        name=MEMORY_CONTRIBUTED,
        source_type=SourceType.RUNTIME_EVENT,
        source_id=made.message_id,
        payload=canonical_json(manifest),
    )


def settings_fact(settings: SessionSettings, *, revision: str) -> Fact:
    """Return *settings* as the session's new settings.

    *revision* tells this change from every other one of the session.
    """
    return Fact(
        kind=FactKind.EVENT,
        name=SESSION_CONFIGURED,
        source_type=SourceType.SESSION,
        source_id=revision,
        payload=canonical_json(settings),
    )


def archived_fact(*, archived: bool, revision: str) -> Fact:
    """Return the fact that the session is put away, or is back.

    *revision* tells this change from every other one of the session.
    """
    return Fact(
        kind=FactKind.EVENT,
        name=SESSION_ARCHIVED,
        source_type=SourceType.SESSION,
        source_id=revision,
        payload=canonical_json(Archived(archived)),
    )


def forked_fact(source: SessionId, through: MessageId | None) -> Fact:
    """Return the fact that the session begins with messages of *source* (SES-23)."""
    return Fact(
        kind=FactKind.EVENT,
        name=SESSION_FORKED,
        source_type=SourceType.SESSION,
        source_id=source,
        payload=canonical_json(Forked(source, through)),
    )


def rewound_fact(rewound: Rewound, *, revision: str) -> Fact:
    """Return the fact that the conversation was taken back; behind its retractions.

    *revision* tells this rewind from every other one of the session.
    """
    return Fact(
        kind=FactKind.EVENT,
        name=SESSION_REWOUND,
        source_type=SourceType.SESSION,
        source_id=revision,
        payload=canonical_json(rewound),
    )


def message_fact(record: MessageRecord, *, revision: int = 0) -> Fact:
    """Return *record* as a revision of its message (TAP-05).

    The same record again is the same fact. To go back to an earlier content at
    the very same ``updated_at``, count *revision* up.
    """
    payload = canonical_json(record)
    stamp = f"{record.status}:{record.updated_at!r}:{revision}"
    return Fact(
        kind=FactKind.MESSAGE,
        name=MESSAGE_RECORDED,
        source_type=SourceType.MESSAGE,
        source_id=record.id,
        payload=payload,
        provenance_key=(
            f"message:{record.id}:revision:{stamp}:{sha256_hex(payload)[:16]}"
        ),
    )


def indicator_fact(before: int, *, revision: str, source: SourceType) -> Fact:
    """Return the fact that somebody compacted before the message at place *before*.

    *revision* tells this compaction from every other one of the session.
    """
    return Fact(
        kind=FactKind.EVENT,
        name=COMPACTION_INDICATOR,
        source_type=source,
        source_id=revision,
        payload=canonical_json(CompactionIndicator(before)),
    )


def retraction_fact(message_id: MessageId) -> Fact:
    """Return the fact that takes a message out of transcript and view for good."""
    return Fact(
        kind=FactKind.EVENT,
        name=MESSAGE_RETRACTED,
        source_type=SourceType.MESSAGE,
        source_id=message_id,
        payload=canonical_json(Retracted(message_id)),
    )


def input_fact(row: PendingInput) -> Fact:
    """Return *row* as a revision of a pending input (PIN-01).

    The same revision again is the same fact.
    """
    payload = canonical_json(row)
    return Fact(
        kind=FactKind.EVENT,
        name=INPUT_RECORDED,
        source_type=SourceType.RUNTIME_EVENT,
        source_id=row.id,
        payload=payload,
        provenance_key=f"input:{row.id}:{row.updated_at!r}:{sha256_hex(payload)[:16]}",
    )


def plan_fact(plan: Plan) -> Fact:
    """Return *plan* as the plan in force."""
    payload = canonical_json(plan)
    return Fact(
        kind=FactKind.EVENT,
        name=PLAN_UPDATED,
        source_type=SourceType.RUNTIME_EVENT,
        source_id="plan",
        source_seq=plan.revision,
        payload=payload,
        provenance_key=f"plan:{plan.revision}:{sha256_hex(payload)[:16]}",
    )


def tool_facts(message_id: MessageId, block: ToolCallBlock) -> tuple[Fact, Fact]:
    """Return the call and the result of a finished *block* (TAP-06).

    Raises:
        ValueError: the call has no result yet.
    """
    if block.status not in ("success", "error"):
        raise ValueError(f"tool call {block.call_id!r} is {block.status}, not finished")
    of = {"messageId": message_id, "toolCallId": block.call_id, "name": block.name}
    call = of | {"arguments": block.arguments, "requestSeq": block.request_seq}
    result = of | {"response": block.response or "", "isError": block.status == "error"}
    return (
        _tool_fact(FactKind.TOOL_CALL, SourceType.TOOL_CALL, block, call),
        _tool_fact(FactKind.TOOL_RESULT, SourceType.TOOL_RESULT, block, result),
    )


def acknowledged_fact(run: RunAcknowledged) -> Fact:
    """Return the fact that *run* was reported by a recovery."""
    return Fact(
        kind=FactKind.EVENT,
        name=RUN_ACKNOWLEDGED,
        source_type=SourceType.RUNTIME_EVENT,
        source_id=run.run_id,
        payload=canonical_json(run),
    )


def reconciled_fact(reconciled: OperationReconciled) -> Fact:
    """Return the fact that an operation in doubt is *reconciled*. Not a strict one."""
    return Fact(
        kind=FactKind.EVENT,
        name=OPERATION_RECONCILED,
        source_type=SourceType.RUNTIME_EVENT,
        source_id=reconciled.operation.hash,
        payload=canonical_json(reconciled),
    )


def _tool_fact(
    kind: FactKind,
    source: SourceType,
    block: ToolCallBlock,
    content: Mapping[str, object],
) -> Fact:
    payload = canonical_json(content)
    return Fact(
        kind=kind,
        name="tool/called" if kind is FactKind.TOOL_CALL else "tool/settled",
        source_type=source,
        source_id=block.id,
        source_seq=block.request_seq,
        payload=payload,
        provenance_key=(
            f"{kind}:{content['messageId']}:{block.call_id}:{sha256_hex(payload)}"
        ),
    )
