"""The strict execution journal: four facts, their keys and their bounds.

*Rule 1*: a fact that is not exactly right is never written: every path into the
journal goes through `journal_fact`, which refuses with ``invalid_fact``.
*Rule 2*: the journal keeps hashes and an error bit, never an argument or a
response (JRN-04); what a tool said is kept on the tape.

Payload keys are camelCase and exact (JRN-01); keys of provenance are hashed per
run and per operation (JRN-02).
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from ._canonical import canonical_json, sha256_hex
from ._errors import JournalError
from ._facts import Fact, FactKind, SourceType
from ._ids import MessageId, OperationId, RunId

PROTOCOL_VERSION: Final = 1

RunKind = Literal["loop", "deferred_tool"]
RunOutcome = Literal["completed", "paused", "aborted", "error"]
ToolSource = Literal["agent", "mcp"]

_MAX_IDENTITY = 1_024
_MAX_TOOL_NAME = 512
_MAX_STOP_REASON = 1_024
_SHA256 = re.compile("[0-9a-f]{64}")
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class ToolTarget(
    msgspec.Struct,
    frozen=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Where a tool runs: a server's name, and for foreign tools their origin."""

    server_name: str
    original_name: str | None = None
    owner_plugin_id: str | None = None


class RunStarted(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
):
    """A run may now do things."""

    protocol_version: int = PROTOCOL_VERSION
    run_id: RunId
    message_id: MessageId
    run_kind: RunKind


class DispatchCommitted(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
):
    """A tool is about to have its effect; every local gate has passed (JRN-09)."""

    operation: OperationId
    message_id: MessageId
    tool_name: str
    tool_source: ToolSource
    arguments_hash: str
    target: ToolTarget


class ToolOutcome(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
):
    """The effect of an operation is known."""

    operation: OperationId
    response_hash: str
    is_error: bool


class RunTerminal(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """A run has ended; at most one for each run (RUN-09)."""

    run_id: RunId
    outcome: RunOutcome
    stop_reason: str
    error_hash: str | None = None


JournalRecord = RunStarted | DispatchCommitted | ToolOutcome | RunTerminal

_NAMES: Final[dict[type[JournalRecord], str]] = {
    RunStarted: "execution/run_started",
    DispatchCommitted: "execution/dispatch_committed",
    ToolOutcome: "execution/tool_outcome",
    RunTerminal: "execution/run_terminal",
}
_TYPES: Final = {name: kind for kind, name in _NAMES.items()}
JOURNAL_NAMES: Final = tuple(_TYPES)


def record_run_id(record: JournalRecord) -> RunId:
    """Return the run that *record* is about."""
    match record:
        case RunStarted() | RunTerminal():
            return record.run_id
        case DispatchCommitted() | ToolOutcome():
            return record.operation.run_id


def journal_key(record: JournalRecord) -> str:
    """Return the provenance key of *record* (JRN-02)."""
    match record:
        case RunStarted():
            return f"execution:v1:run:{sha256_hex(record.run_id)}:started"
        case RunTerminal():
            return f"execution:v1:run:{sha256_hex(record.run_id)}:terminal"
        case DispatchCommitted():
            return f"execution:v1:operation:{record.operation.hash}:dispatch"
        case ToolOutcome():
            return f"execution:v1:operation:{record.operation.hash}:outcome"


def journal_fact(record: JournalRecord) -> Fact:
    """Return *record* as a fact, every bound checked.

    Raises:
        JournalError: ``invalid_fact``; a field is out of its bounds (JRN-03).
    """
    _check(record)
    run_fact = isinstance(record, (RunStarted, RunTerminal))
    return Fact(
        kind=FactKind.EVENT,
        name=_NAMES[type(record)],
        source_type=SourceType.RUNTIME_EVENT,
        source_id=record_run_id(record),
        source_seq=0 if run_fact else record.operation.request_seq,
        payload=canonical_json(record),
        meta='{"family":"execution_journal"}',
        provenance_key=journal_key(record),
    )


def journal_record(fact: Fact) -> JournalRecord:
    """Return the record that *fact* holds, strictly decoded.

    Raises:
        JournalError: ``invalid_fact``; not a journal fact, an extra or missing key,
            a wrong type, a bound exceeded, or a key that is not the record's.
    """
    kind = _TYPES.get(fact.name)
    if kind is None:
        raise _invalid(f"{fact.name!r} is not a journal fact")
    try:
        record = msgspec.json.decode(fact.payload, type=kind)
    except msgspec.DecodeError as exc:
        raise _invalid(f"{fact.name} can't be decoded: {exc}") from exc
    if journal_fact(record) != fact:
        raise _invalid(f"{fact.name} has an identity that is not its payload's")
    return record


def _check(record: JournalRecord) -> None:
    _check_uuid(record_run_id(record))
    match record:
        case RunStarted():
            if record.protocol_version != PROTOCOL_VERSION:
                raise _invalid(f"protocol version {record.protocol_version!r}")
            _check_text("message id", record.message_id, _MAX_IDENTITY)
            if record.run_kind not in ("loop", "deferred_tool"):
                raise _invalid(f"run kind {record.run_kind!r}")
        case DispatchCommitted():
            _check_operation(record.operation)
            _check_text("message id", record.message_id, _MAX_IDENTITY)
            _check_text("tool name", record.tool_name, _MAX_TOOL_NAME)
            if record.tool_source not in ("agent", "mcp"):
                raise _invalid(f"tool source {record.tool_source!r}")
            _check_hash("arguments hash", record.arguments_hash)
            _check_text("server name", record.target.server_name, _MAX_IDENTITY)
            for value in (record.target.original_name, record.target.owner_plugin_id):
                if value is not None:
                    _check_text("target", value, _MAX_IDENTITY)
        case ToolOutcome():
            _check_operation(record.operation)
            _check_hash("response hash", record.response_hash)
        case RunTerminal():
            if record.outcome not in ("completed", "paused", "aborted", "error"):
                raise _invalid(f"outcome {record.outcome!r}")
            _check_text("stop reason", record.stop_reason, _MAX_STOP_REASON)
            if record.error_hash is not None:
                _check_hash("error hash", record.error_hash)


def _check_operation(operation: OperationId) -> None:
    if operation.request_seq < 1:
        raise _invalid(f"request sequence {operation.request_seq!r}")
    _check_text("tool call id", operation.provider_tool_call_id, _MAX_IDENTITY)


def _check_uuid(value: str) -> None:
    if not _UUID.fullmatch(value):
        raise _invalid(f"run id {value[:64]!r} is not a UUID")


def _check_hash(what: str, value: str) -> None:
    if not _SHA256.fullmatch(value):
        raise _invalid(f"{what} {value[:80]!r} is not sha256 hex")


def _check_text(what: str, value: str, limit: int) -> None:
    if not value or len(value) > limit or "\x00" in value:
        raise _invalid(f"{what} must have 1 to {limit} characters, has {len(value)}")


def _invalid(problem: str) -> JournalError:
    return JournalError("invalid_fact", problem)
