"""The laws of views: what manifests on a tape say of the requests that were sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from greenroom.protocol import ModelRequest, TapeEntry
from greenroom.protocol.context import StoredManifest, Tally, tools_hash
from greenroom.protocol.providers import PROFILES, encode_request

OPENAI = PROFILES["openai"]


def manifests_of(tape: Iterable[TapeEntry]) -> list[StoredManifest]:
    """Return the manifests on *tape*, in order; each must be readable."""
    return [
        msgspec.json.decode(entry.fact.payload, type=StoredManifest)
        for entry in tape
        if entry.fact.name == "view/assembled" and "manifest" in entry.fact.payload
    ]


def view_problems(
    tape: Sequence[TapeEntry], requests: Sequence[ModelRequest]
) -> Iterator[str]:
    """Say which laws of views the *tape* and the *requests* of all sessions break."""
    yield from _order_problems(tape)
    hashes = {prompt_hash(request): request for request in requests}
    before: dict[str, StoredManifest] = {}
    for stored in manifests_of(tape):
        if not stored.is_sound:
            yield f"views: {stored.view_id} is not what its hash is of"
        before[stored.view_id] = stored
        request = hashes.get(stored.manifest.hashes.prompt_hash)
        if request is not None:
            yield from _request_problems(stored, request)
            yield from _prefix_problems(stored, before, request, hashes)


def _order_problems(tape: Sequence[TapeEntry]) -> Iterator[str]:
    described: set[tuple[str, int]] = set()
    for entry in tape:
        key = entry.fact.source_id, entry.fact.source_seq
        if entry.fact.name == "view/assembled" and "manifest" in entry.fact.payload:
            described.add(key)
        is_sent = entry.fact.name == "provider/attempt_completed"
        is_ours = described and "physicalAttempt" in entry.fact.payload
        if is_sent and is_ours and key not in described:
            yield f"views: request {key} was sent without a manifest"


def _request_problems(stored: StoredManifest, request: ModelRequest) -> Iterator[str]:
    manifest = stored.manifest
    counted = sum(part.count for part in manifest.included)
    if counted != len(request.messages):
        yield f"views: {stored.view_id} tells of {counted} messages of a request"
    if manifest.hashes.tool_definitions_hash != tools_hash(request.tools):
        yield f"views: {stored.view_id} tells of other tools"


def _prefix_problems(
    stored: StoredManifest,
    known: dict[str, StoredManifest],
    request: ModelRequest,
    requests: dict[str, ModelRequest],
) -> Iterator[str]:
    prefix = stored.manifest.prefix
    last = None if prefix is None else known.get(prefix.view_id)
    old = last and requests.get(last.manifest.hashes.prompt_hash)
    if prefix is None or old is None:
        return
    kept = prefix.kept
    if old.messages[:kept] != request.messages[:kept]:
        yield f"views: {stored.view_id} keeps less of the request before than it says"
    if kept < len(old.messages) and prefix.changed is None:
        yield f"views: {stored.view_id} says not why its beginning is another"
    if kept == len(old.messages) and kept:
        yield from _byte_problems(stored, old, request)


def _byte_problems(
    stored: StoredManifest, old: ModelRequest, new: ModelRequest
) -> Iterator[str]:
    # What was sent is, byte for byte, what the next body begins with.
    bodies = [encode_request(request, OPENAI) for request in (old, new)]
    first, second = (json.loads(body)["messages"] for body in bodies)
    if json.dumps(first) != json.dumps(second[: len(first)]):
        yield f"views: the body behind {stored.view_id} begins in another way"


def prompt_hash(request: ModelRequest) -> str:
    """Return what the manifest of *request* has as the hash of its messages."""
    tally = Tally()
    tally.show(request.messages)
    return tally.whole.hash
