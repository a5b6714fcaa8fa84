"""The manifest of a request, from its view and its numbers.

Pure: what the tape, the clock and the window say are arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Final, Literal

import attrs
import msgspec

from .._ids import MessageId, RunId, SessionId
from .._messages import ChatMessage
from .._view import ViewBuilder
from .._view_parts import IncludedReason, Part
from ._manifest import (
    ExcludedRange,
    ExecutionContract,
    ExecutionRef,
    Hashes,
    IncludedPart,
    Prefix,
    PrefixChange,
    StoredManifest,
    TokenBudget,
    ViewManifest,
)
from ._pin import PinnedUser, inherited_pin, pinned_user
from ._policy import Chosen, ViewOrigin, request_policy
from ._preflight import Preflight
from ._tally import Mark, Tally, equal_in_front
from ._usage_anchor import RequestKind

WindowSource = Literal["session", "configured", "listed", "provider", "unknown"]

_SYNTHETIC: Final = frozenset(
    {
        "system_prompt",
        "summary_checkpoint",
        "reconstruction_checkpoint",
        "memory_context",
        "directive_context",
    }
)


@attrs.frozen
class RequestIdentity:
    """Which request it is, and of what."""

    run_id: RunId
    message_id: MessageId
    request_seq: int
    logical_round: int
    origin: ViewOrigin


@attrs.frozen
class TapeState:
    """Which tape it is, and where it was when a request was assembled."""

    session_id: SessionId
    incarnation: str
    head: int
    anchor: int | None = None
    """The entry that moved the boundary to where it is."""


def _as_reckoned(numbers: Numbers) -> int:
    return numbers.preflight.input + numbers.preflight.tools


@attrs.frozen
class Numbers:
    """What the preflight came to, and where it has its numbers from."""

    preflight: Preflight
    source: WindowSource = "unknown"
    anchored: bool = False
    estimated: int = attrs.Factory(_as_reckoned, takes_self=True)
    """Messages and tools without any count of a provider's: what two requests can be
    compared by, of which maybe one begins with what was counted."""


@attrs.frozen
class Sent:
    """What is remembered of a request for the manifest of the next one."""

    stored: StoredManifest
    messages: tuple[ChatMessage, ...]
    left_out: int
    """Items that the provider had refused by then."""


def assemble_manifest(
    identity: RequestIdentity,
    tape: TapeState,
    chosen: Chosen,
    view: ViewBuilder,
    tally: Tally,
    numbers: Numbers,
    kind: RequestKind,
    before: Sent | None,
    messages: tuple[ChatMessage, ...],
    *,
    first_pin: PinnedUser | None = None,
) -> ViewManifest:
    """Return the manifest of the request of *messages*, which *tally* was shown last.

    Args:
        before: the request before it, of the same session and process.
        first_pin: that of the turn's first request; a later one keeps it only
            unchanged (CTX-34).
    """
    policy = request_policy(chosen, identity.origin)
    parts = _parts(view, tally, identity.origin)
    included = tuple(_included(part, tally) for part in parts)
    pin = _pin(view, parts, tally)
    if policy.task == "tool_loop" and not inherited_pin(first_pin, pin):
        pin = None
    manifest = ViewManifest(
        session_id=tape.session_id,
        run_id=identity.run_id,
        message_id=identity.message_id,
        request_seq=identity.request_seq,
        tape_incarnation_id=tape.incarnation,
        task_type=policy.task,
        policy=policy.policy,
        policy_version=policy.version,
        selection=policy.selection,
        latest_entry_id=tape.head,
        reconstruction_anchor_entry_id=tape.anchor,
        included=included,
        excluded=_excluded(view),
        pin=pin,
        token_budget=_budget(numbers, tally.whole),
        hashes=Hashes(
            prompt_hash=tally.whole.hash, tool_definitions_hash=kind.tools_hash
        ),
        execution_contract=ExecutionContract(
            provider=kind.provider,
            model=kind.model,
            generation_hash=kind.generation_hash,
        ),
        execution_ref=ExecutionRef(
            run_id=identity.run_id,
            logical_round=identity.logical_round,
            origin=identity.origin,
        ),
        skill_contexts=view.skills,
    )
    prefix = before and _prefix(before, manifest, messages, view.left_out_items)
    return msgspec.structs.replace(manifest, prefix=prefix)


#### What is in


def _parts(view: ViewBuilder, tally: Tally, origin: ViewOrigin) -> tuple[Part, ...]:
    parts = view.parts
    told = sum(part.count for part in parts)
    if told == tally.count:
        return parts
    # Another payload than the view's: a recovery has changed what it carries.
    reason: IncludedReason = "tool_loop_message"
    if origin != "context_recovery" or not parts:
        return (*parts, Part(reason, "mixed", told, max(0, tally.count - told)))
    return tuple(_cut(parts, tally.count))


def _cut(parts: tuple[Part, ...], count: int) -> Iterator[Part]:
    left = count
    for part in parts:
        yield attrs.evolve(part, count=min(part.count, left))
        left -= min(part.count, left)


def _included(part: Part, tally: Tally) -> IncludedPart:
    synthetic = part.reason in _SYNTHETIC
    end = tally.at(min(part.start + part.count, tally.count))
    return IncludedPart(
        reason=part.reason,
        source="synthetic" if synthetic else "tape",
        role=part.role,
        count=part.count,
        message_id=part.message_id,
        orders=part.orders,
        content_hash=part.digest or end.hash,
    )


def _pin(view: ViewBuilder, parts: tuple[Part, ...], tally: Tally) -> PinnedUser | None:
    record = view.pinned
    part = next((p for p in parts if p.reason == "pinned_first_user"), None)
    if record is None or part is None or part.start >= tally.count:
        return None
    alone = Mark().after(tally.message(part.start))
    prefix = tally.at(part.start + 1)
    return pinned_user(record, content_hash=alone.hash, prefix_hash=prefix.hash)


def _excluded(view: ViewBuilder) -> tuple[ExcludedRange, ...]:
    return tuple(
        ExcludedRange(first=e.first, last=e.last, count=e.count, reason=e.reason)
        for e in view.excluded
    )


def _budget(numbers: Numbers, whole: Mark) -> TokenBudget:
    preflight = numbers.preflight
    return TokenBudget(
        context_length=preflight.context,
        context_source=numbers.source,
        requested_max_tokens=preflight.requested,
        effective_max_tokens=preflight.effective,
        reserve_tokens=preflight.margin,
        tool_reserve_tokens=preflight.tools,
        estimated_prompt_tokens=preflight.input,
        anchored=numbers.anchored,
        prompt_bytes=whole.size,
    )


#### What it has in common with the one before


def _prefix(
    before: Sent, now: ViewManifest, messages: tuple[ChatMessage, ...], left_out: int
) -> Prefix:
    kept, count = equal_in_front(before.messages, messages), len(before.messages)
    changed = _change(before, now, kept, left_out) if kept < count else None
    view_id = before.stored.view_id
    return Prefix(view_id=view_id, messages=count, kept=kept, changed=changed)


def _change(before: Sent, now: ViewManifest, kept: int, left_out: int) -> PrefixChange:
    old = before.stored.manifest
    if "context_recovery" in (old.execution_ref.origin, now.execution_ref.origin):
        return "recovered"
    if old.reconstruction_anchor_entry_id != now.reconstruction_anchor_entry_id:
        return "boundary_moved"
    if before.left_out != left_out:
        return "item_left_out"
    if _dropped(old) != _dropped(now):
        return "out_of_budget"
    there = {_reason_at(old, kept), _reason_at(now, kept)}
    if "system_prompt" in there:
        return "instructions_changed"
    if "pinned_first_user" in there:
        return "pin_changed"
    if _reason_at(old, kept) == "selected_history":
        return "history_changed"
    if old.message_id != now.message_id:
        return "new_turn"
    return "contributions_changed" if "new_user_input" in there else "history_changed"


def _dropped(manifest: ViewManifest) -> int:
    return sum(e.count for e in manifest.excluded if e.reason == "out_of_budget")


def _reason_at(manifest: ViewManifest, number: int) -> IncludedReason | None:
    ends = accumulate(part.count for part in manifest.included)
    pairs = zip(manifest.included, ends, strict=True)
    return next((part.reason for part, end in pairs if number < end), None)
