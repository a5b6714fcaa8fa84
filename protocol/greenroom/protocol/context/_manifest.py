"""What a request carried, and why: the manifest that is on the tape before it is sent.

It names what is in and what is not by ranges and hashes and copies no text, so it is as
small for a long session as for a short one. Its identity is a hash of all but when it
was made (CTX-04).
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

import msgspec

from .._canonical import canonical_json, sha256_hex
from .._facts import Fact, FactKind, SourceType
from .._ids import MessageId, RunId, SessionId
from .._view_parts import ExcludedReason, IncludedReason, SkillContext
from ._pin import PinnedUser
from ._policy import Selection, ShadowPolicy, TaskType, ViewPolicy

MANIFEST_SCHEMA: Final = 7
VIEW_ASSEMBLED: Final = "view/assembled"
BUILDER_VERSION: Final = 1
_HASH_VERSION: Final = 5

PrefixChange = Literal[
    "instructions_changed",
    "pin_changed",
    "boundary_moved",
    "out_of_budget",
    "history_changed",
    "new_turn",
    "contributions_changed",
    "item_left_out",
    "recovered",
]
"""Why a request does not begin with all messages of the one before it."""


class IncludedPart(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """A stretch of messages that is in, or a text inside one of them."""

    reason: IncludedReason
    source: Literal["tape", "synthetic"]
    role: Literal["system", "user", "assistant", "mixed"]
    count: int = 0
    """Messages; absent for a text inside the message before."""
    message_id: MessageId | None = None
    orders: tuple[int, int] | None = None
    """Places in the transcript, the first and the last."""
    content_hash: str
    """SHA-256: of a text that is from no message; else of the request's messages up to
    the end of this part."""


class ExcludedRange(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of the transcript that are not in."""

    first: int = msgspec.field(name="from")
    last: int = msgspec.field(name="to")
    count: int
    reason: ExcludedReason


class TokenBudget(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """The numbers of the preflight, in tokens, and what the messages weigh in bytes."""

    context_length: int | None
    """``None``: not known, and nothing is assumed (CTX-11)."""
    context_source: Literal["session", "configured", "listed", "provider", "unknown"]
    requested_max_tokens: int
    effective_max_tokens: int
    reserve_tokens: int
    tool_reserve_tokens: int
    estimated_prompt_tokens: int
    anchored: bool = False
    """Whether a provider's own count is part of the estimate (CTX-13)."""
    prompt_bytes: int


class Prefix(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """What a request has in common with the one before it in this process."""

    view_id: str
    """Of the request before."""
    messages: int
    """How many that one had."""
    kept: int
    """How many of them this one begins with, byte for byte."""
    changed: PrefixChange | None = None
    """Why not all; absent when it is all."""


class ExecutionContract(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who is asked, with which parameters."""

    provider: str
    model: str
    generation_hash: str


class ExecutionRef(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which place of its run a request has."""

    run_id: RunId
    logical_round: int
    origin: Literal["chat", "resume", "tool_loop", "context_recovery"]


class Hashes(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the request is, by SHA-256."""

    prompt_hash: str
    tool_definitions_hash: str


class ViewManifest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """The manifest of one request, before it is given its identity."""

    schema_version: int = msgspec.field(default=MANIFEST_SCHEMA, name="schema")
    hash_version: int = _HASH_VERSION
    session_id: SessionId
    run_id: RunId
    message_id: MessageId
    request_seq: int
    tape_incarnation_id: str
    task_type: TaskType
    policy: ViewPolicy | ShadowPolicy
    policy_version: int
    selection: Selection | None = None
    context_builder_version: int = BUILDER_VERSION
    latest_entry_id: int
    """Where the tape ended when it was assembled."""
    reconstruction_anchor_entry_id: int | None = None
    included: tuple[IncludedPart, ...]
    excluded: tuple[ExcludedRange, ...] = ()
    pin: PinnedUser | None = None
    token_budget: TokenBudget
    hashes: Hashes
    prefix: Prefix | None = None
    execution_contract: ExecutionContract
    execution_ref: ExecutionRef
    skill_contexts: tuple[SkillContext, ...] = ()


class StoredManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Payload of ``view/assembled``: a manifest with its identity and its time.

    ``message_id`` and ``request_seq`` are repeated outside, where the store looks.
    """

    view_id: str
    manifest_hash: str
    assembled_at: float
    """Seconds since the epoch; part of no hash."""
    message_id: MessageId
    request_seq: int
    manifest: ViewManifest

    @property
    def is_sound(self) -> bool:
        """Whether the manifest is the one that its hash is of."""
        return manifest_hash(self.manifest) == self.manifest_hash


def manifest_hash(manifest: ViewManifest) -> str:
    """Return the SHA-256 of *manifest* as canonical JSON (CTX-04)."""
    return hashlib.sha256(canonical_json(manifest).encode()).hexdigest()


def stored_manifest(manifest: ViewManifest, now: float) -> StoredManifest:
    """Return *manifest* with its identity."""
    identity = manifest_hash(manifest)
    return StoredManifest(
        view_id=f"view_{sha256_hex(identity)[:16]}",
        manifest_hash=identity,
        assembled_at=now,
        message_id=manifest.message_id,
        request_seq=manifest.request_seq,
        manifest=manifest,
    )


def manifest_fact(stored: StoredManifest) -> Fact:
    """Return the fact of *stored*; the same request again is the same fact."""
    manifest = stored.manifest
    return Fact(
        kind=FactKind.EVENT,
        name=VIEW_ASSEMBLED,
        source_type=SourceType.RUNTIME_EVENT,
        source_id=manifest.run_id,
        source_seq=manifest.request_seq,
        payload=canonical_json(stored),
        provenance_key=(
            f"view:{manifest.session_id}:{manifest.message_id}"
            f":{manifest.request_seq}:{stored.manifest_hash}"
        ),
    )
