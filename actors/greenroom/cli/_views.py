"""``greenroom inspect VIEW`` and ``--views``: what requests carried, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from greenroom.protocol import RunId, TapeEntry
from greenroom.protocol.context import (
    VIEW_ASSEMBLED,
    ExcludedRange,
    IncludedPart,
    StoredManifest,
    TokenBudget,
    ViewManifest,
)

from ._harmless import json_line, one_line

VIEW_PREFIX: Final = "view_"

_HASH_CHARS: Final = 12


def views_of(
    entries: Iterable[TapeEntry], run_id: RunId | None = None
) -> Iterator[StoredManifest]:
    """Yield the manifests among *entries*; of one run, or all."""
    for entry in entries:
        if entry.fact.name != VIEW_ASSEMBLED:
            continue
        try:
            stored = msgspec.json.decode(entry.fact.payload, type=StoredManifest)
        except msgspec.DecodeError:
            continue
        if run_id in (None, stored.manifest.run_id):
            yield stored


def print_views(views: Iterable[StoredManifest], *, as_json: bool) -> None:
    """Print a line for each of *views*, oldest first."""
    for stored in views:
        if as_json:
            sys.stdout.write(json_line(stored))
            continue
        manifest = stored.manifest
        count = sum(part.count for part in manifest.included)
        print(
            f"{stored.view_id}  request {manifest.request_seq}  {manifest.task_type:<9}"
            f"  {count} messages, {_tokens(manifest.token_budget)}{_begins(manifest)}"
        )


def print_view(stored: StoredManifest, *, as_json: bool) -> None:
    """Print *stored*: what is in, what is not, and what it was reckoned to take."""
    if as_json:
        sys.stdout.write(json_line(stored))
    else:
        print("\n".join(_lines(stored)))


def print_difference(
    old: StoredManifest, new: StoredManifest, *, as_json: bool
) -> None:
    """Print what *new* has or says that *old* has not, and the other way round."""
    before, after = _lines(old), _lines(new)
    gone = [line for line in before if line not in after]
    added = [line for line in after if line not in before]
    if as_json:
        sys.stdout.write(json_line({"removed": gone, "added": added}))
        return
    for sign, lines in (("-", gone), ("+", added)):
        for line in lines:
            print(f"{sign} {line}")


def _lines(stored: StoredManifest) -> list[str]:
    manifest = stored.manifest
    contract = manifest.execution_contract
    sound = "" if stored.is_sound else "  (not what its hash is of)"
    seq, number = manifest.request_seq, manifest.execution_ref.logical_round
    chosen = "" if manifest.selection is None else f", {manifest.selection}"
    how = f"{manifest.policy} {manifest.policy_version}{chosen}"
    who = f"{one_line(contract.provider, 50)}  {one_line(contract.model, 50)}"
    return [
        f"{stored.view_id}{sound}",
        f"  message {manifest.message_id}, request {seq}, round {number}",
        f"  {manifest.task_type}, {how}",
        f"  {who}",
        f"  {_window(manifest.token_budget)}",
        f"  {_tokens(manifest.token_budget)}{_begins(manifest)}",
        *(f"  in   {_included(part)}" for part in manifest.included),
        *(f"  out  {_excluded(each)}" for each in manifest.excluded),
        *(f"  skill {one_line(skill.name, 64)}" for skill in manifest.skill_contexts),
        f"  tools {manifest.hashes.tool_definitions_hash[:_HASH_CHARS]}",
    ]


def _included(part: IncludedPart) -> str:
    inside = "inside the message" if not part.count else f"{part.count} messages"
    places = "" if part.orders is None else f", places {_range(*part.orders)}"
    return f"{part.reason}: {inside}{places}  {part.content_hash[:_HASH_CHARS]}"


def _excluded(each: ExcludedRange) -> str:
    places = _range(each.first, each.last)
    return f"{each.reason}: {each.count} of places {places}"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _window(budget: TokenBudget) -> str:
    if budget.context_length is None:
        return "window unknown"
    known = f"{budget.context_length:,} tokens ({budget.context_source})"
    reserve = f"{budget.reserve_tokens} and {budget.tool_reserve_tokens} for tools"
    output = f"{budget.effective_max_tokens:,}"
    return f"window {known}, output {output}, kept free {reserve}"


def _tokens(budget: TokenBudget) -> str:
    how = "from the provider's count" if budget.anchored else "estimated"
    tokens, size = budget.estimated_prompt_tokens, budget.prompt_bytes
    return f"{tokens:,} tokens {how}, {size:,} bytes"


def _begins(manifest: ViewManifest) -> str:
    prefix = manifest.prefix
    if prefix is None:
        return ""
    if prefix.changed is None:
        return f", begins with all {prefix.messages} of the request before"
    return f", begins with {prefix.kept} of {prefix.messages} before: {prefix.changed}"
