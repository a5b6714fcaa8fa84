"""Replay slices: what is kept of one request, bound together by hashes (TAP-16).

A slice names the manifest of a request and, if their traces are still kept, what each
of its attempts sent. It holds no text: whoever replays reads that from the tape and the
traces, and verifies the slice first. A manifest that is not the one of its hash, or a
trace that was changed since, is an error, never something that looks like a replay.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from greenroom.protocol import (
    AttemptTrace,
    MessageId,
    RunId,
    SessionId,
    StorageError,
    canonical_json,
    sha256_hex,
)
from greenroom.protocol.context import StoredManifest

from ._limits import MAX_TRACES
from ._store import Reader
from .names import VIEW_ASSEMBLED

ReplayMode = Literal["manifest_only", "trace_bound"]


class BoundTrace(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One attempt of the request, as what it sent is kept."""

    run_id: RunId
    physical_attempt: int
    payload_hash: str
    truncated: bool


class ReplaySlice(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One request, by hashes."""

    slice_id: str
    mode: ReplayMode
    session_id: SessionId
    message_id: MessageId
    request_seq: int
    entry_id: int
    """Where the manifest is on the tape."""
    manifest_hash: str
    prompt_hash: str
    tool_definitions_hash: str
    traces: tuple[BoundTrace, ...]


class ReplayError(StorageError):
    """The request can't be replayed, or is not what the slice says."""

    code = "replay_failed"
    hint = "make the slice anew; what was sent is not what is kept"


def replay_slice(
    reader: Reader, scope: SessionId, message_id: MessageId, request_seq: int
) -> ReplaySlice:
    """Return the slice of one request, as it is kept now.

    Raises:
        ReplayError: it has no manifest, or one that is not sound.
    """
    entry_id, stored = _manifest(reader, scope, message_id, request_seq)
    traces = tuple(
        _bound(trace)
        for trace in reader.traces(scope, message_id, MAX_TRACES)
        if trace.request_seq == request_seq and trace.run_id == stored.manifest.run_id
    )
    hashes = stored.manifest.hashes
    identity = canonical_json((scope, stored.manifest_hash, traces))
    return ReplaySlice(
        slice_id=f"replay_{sha256_hex(identity)[:16]}",
        mode="trace_bound" if traces else "manifest_only",
        session_id=scope,
        message_id=message_id,
        request_seq=request_seq,
        entry_id=entry_id,
        manifest_hash=stored.manifest_hash,
        prompt_hash=hashes.prompt_hash,
        tool_definitions_hash=hashes.tool_definitions_hash,
        traces=traces,
    )


def verify_slice(reader: Reader, cut: ReplaySlice) -> None:
    """Check that what is kept is what *cut* was made of.

    Raises:
        ReplayError: the manifest or a trace is another, or is gone.
    """
    now = replay_slice(reader, cut.session_id, cut.message_id, cut.request_seq)
    if now.manifest_hash != cut.manifest_hash:
        raise ReplayError(f"the manifest of {cut.slice_id} is another one")
    kept = {_attempt(trace): trace for trace in now.traces}
    for trace in cut.traces:
        found = kept.get(_attempt(trace))
        if found is None:
            raise ReplayError(
                f"the trace of attempt {trace.physical_attempt} of {cut.slice_id} is"
                " not kept any more"
            )
        if found != trace:
            raise ReplayError(
                f"the trace of attempt {trace.physical_attempt} of {cut.slice_id} was"
                " changed"
            )
    if now != cut:
        raise ReplayError(f"{cut.slice_id} is not the slice of this request")


def _manifest(
    reader: Reader, scope: SessionId, message_id: MessageId, request_seq: int
) -> tuple[int, StoredManifest]:
    which = f"request {request_seq} of message {message_id[:80]!r}"
    # The newest one: a request that was assembled again was sent as that.
    for entry in reversed(reader.request_entries(scope, message_id, request_seq)):
        if entry.fact.name != VIEW_ASSEMBLED:
            continue
        try:
            stored = msgspec.json.decode(entry.fact.payload, type=StoredManifest)
        except msgspec.DecodeError as exc:
            raise ReplayError(f"the manifest of {which} can't be read: {exc}") from exc
        if not stored.is_sound:
            raise ReplayError(f"the manifest of {which} is not the one of its hash")
        return entry.seq, stored
    raise ReplayError(f"there is no manifest of {which}")


def _bound(trace: AttemptTrace) -> BoundTrace:
    return BoundTrace(
        run_id=trace.run_id,
        physical_attempt=trace.physical_attempt,
        payload_hash=sha256_hex(trace.payload),
        truncated=trace.truncated,
    )


def _attempt(trace: BoundTrace) -> tuple[RunId, int]:
    return trace.run_id, trace.physical_attempt
