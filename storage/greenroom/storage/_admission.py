"""What may be written: bounds and forms of everything that reaches a tape.

Pure. A fact that passes here can't fail a projection later: payloads of names
that have one are decoded here (`names.py`). Nothing is repaired; a refusal is a
`RefusedFactError` that says which fact, what and why.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from greenroom.protocol import (
    EXECUTION_PREFIX,
    MAX_PAYLOAD_BYTES,
    MAX_SAFE_INTEGER,
    MAX_TRACE_BYTES,
    AttemptTrace,
    Fact,
    FactKind,
    JournalError,
    MessageRecord,
    PendingInput,
    Plan,
    SessionSettings,
    SourceType,
)

from ._bindings import MAX_CLIENT_ID
from ._errors import RefusedFactError
from ._values import MAX_FACTS
from .names import (
    INPUT_RECORDED,
    MESSAGE_RECORDED,
    MESSAGE_RETRACTED,
    MODEL_CALLED,
    PLAN_UPDATED,
    RUN_ACKNOWLEDGED,
    SESSION_ARCHIVED,
    SESSION_CONFIGURED,
    SESSION_START,
    Archived,
    ModelCalled,
    Retracted,
    RunAcknowledged,
)

MAX_NAME: Final = 200
MAX_IDENTITY: Final = 1_024
MAX_KEY: Final = 4_096
MAX_APPEND_ID: Final = 200
MAX_SEQ: Final = (1 << 63) - 1

_PROJECTED: Final[dict[str, tuple[FactKind, type[msgspec.Struct]]]] = {
    MESSAGE_RECORDED: (FactKind.MESSAGE, MessageRecord),
    MESSAGE_RETRACTED: (FactKind.EVENT, Retracted),
    PLAN_UPDATED: (FactKind.EVENT, Plan),
    INPUT_RECORDED: (FactKind.EVENT, PendingInput),
    SESSION_CONFIGURED: (FactKind.EVENT, SessionSettings),
    SESSION_ARCHIVED: (FactKind.EVENT, Archived),
    RUN_ACKNOWLEDGED: (FactKind.EVENT, RunAcknowledged),
    MODEL_CALLED: (FactKind.EVENT, ModelCalled),
}
_NAME = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*")


def check_facts(facts: Sequence[Fact], settles: Sequence[str]) -> None:
    """Refuse *facts* as a whole if one of them is not right.

    Raises:
        JournalError: ``invalid_fact``; only the journal writes ``execution/``.
        RefusedFactError: anything else that is wrong.
    """
    if len(facts) > MAX_FACTS or len(settles) > MAX_FACTS:
        raise RefusedFactError(
            f"an append takes at most {MAX_FACTS} facts and settles, "
            f"got {len(facts)} and {len(settles)}",
            hint="write them in several appends",
        )
    for fact in facts:
        if fact.name.startswith(EXECUTION_PREFIX):
            raise JournalError(
                "invalid_fact", f"{fact.name!r} is made by a journal commit only"
            )
        check_fact(fact)


def check_fact(fact: Fact) -> None:
    """Refuse *fact* unless every bound holds and its payload is what its name says."""
    _check_kind(fact)
    if len(fact.name) > MAX_NAME or not _NAME.fullmatch(fact.name):
        raise RefusedFactError(f"{fact.name[:80]!r} is not a fact's name")
    check_text("source id", fact.source_id, MAX_IDENTITY)
    if not 0 <= fact.source_seq <= MAX_SEQ:
        raise RefusedFactError(f"source sequence {fact.source_seq!r} of {fact.name}")
    check_text("provenance key", fact.key, MAX_KEY)
    payload = _check_json(f"payload of {fact.name}", fact.payload)
    meta = _check_json(f"meta of {fact.name}", fact.meta)
    if fact.name in _PROJECTED:
        _check_projected(fact, payload)
    if fact.name == SESSION_START:
        _check_start(fact, meta)


def check_start(head: int, facts: Sequence[Fact]) -> None:
    """Refuse *facts* unless ``session/start`` is the tape's first entry, and only that.

    Raises:
        RefusedFactError: the tape is empty and the first fact is another, or a
            start anchor comes later (TAP-03).
    """
    if head == 0 and facts and facts[0].name != SESSION_START:
        raise RefusedFactError(
            f"a tape begins with the session/start anchor, not {facts[0].name!r}",
            hint="begin with bootstrap_facts()",
        )
    if any(fact.name == SESSION_START for fact in facts[head == 0 :]):
        raise RefusedFactError(
            "session/start is a tape's first entry only",
            hint="reset the session to begin a new incarnation",
        )


def check_bootstrap(facts: Sequence[Fact]) -> None:
    """Refuse a new incarnation that begins with nothing."""
    if not facts:
        raise RefusedFactError(
            "a new incarnation begins with its bootstrap facts",
            hint="use bootstrap_facts()",
        )


def check_session_id(scope: str) -> None:
    """Refuse an id that can't name a session."""
    check_text("session id", scope, MAX_NAME)


def check_binding(client_id: str, scope: str) -> None:
    """Refuse ids that can't be bound."""
    check_text("client id", client_id, MAX_CLIENT_ID)
    check_session_id(scope)


def check_member(node: str, addr: str, ttl: float) -> None:
    """Refuse a member that can't be shown, or whose beat is good for no time."""
    check_text("node", node, MAX_IDENTITY)
    if addr:
        check_text("addr", addr, MAX_IDENTITY)
    if not ttl > 0:
        raise ValueError(f"a beat must be good for some time, not {ttl!r} s")


def check_command(command_id: str, body: str) -> None:
    """Refuse a command whose id or body is out of bounds."""
    check_text("command id", command_id, MAX_IDENTITY)
    _check_json("body of a command", body)


def check_text(what: str, value: str, limit: int) -> None:
    """Refuse *value* unless it has 1 to *limit* storable characters."""
    if not value or len(value) > limit:
        raise RefusedFactError(
            f"{what} must have 1 to {limit} characters, has {len(value)}"
        )
    if "\x00" in value:
        raise RefusedFactError(f"{what} {value[:80]!r} holds a NUL")
    _encode(what, value)


def check_json(what: str, text: str) -> None:
    """Refuse *text* unless it is JSON within the bounds of a payload."""
    _check_json(what, text)


def check_trace(trace: AttemptTrace) -> None:
    """Refuse a trace that has no identity, or is too large to be kept."""
    for what, value in (("run id", trace.run_id), ("message id", trace.message_id)):
        check_text(what, value, MAX_IDENTITY)
    for number in (trace.logical_round, trace.request_seq, trace.physical_attempt):
        if not 0 <= number <= MAX_SAFE_INTEGER:
            raise RefusedFactError(f"a trace counts {number!r}")
    check_text("provider of a trace", trace.provider, MAX_IDENTITY)
    check_text("model of a trace", trace.model, MAX_IDENTITY)
    size = len(_encode("payload of a trace", trace.payload))
    if "\x00" in trace.payload or size > MAX_TRACE_BYTES:
        raise RefusedFactError(
            f"payload of a trace has {size} bytes, at most {MAX_TRACE_BYTES} without a "
            "NUL are kept"
        )


def _check_kind(fact: Fact) -> None:
    try:
        FactKind(fact.kind)
        SourceType(fact.source_type)
    except ValueError as exc:
        raise RefusedFactError(
            f"{fact.name[:80]!r} has an unknown kind: {exc}"
        ) from exc


def _check_json(what: str, text: str) -> Any:  # noqa: ANN401 - any JSON value
    data = _encode(what, text)
    if len(data) > MAX_PAYLOAD_BYTES:
        raise RefusedFactError(
            f"{what} has {len(data)} bytes, at most {MAX_PAYLOAD_BYTES} are kept",
            hint="keep the content elsewhere and store a reference",
        )
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise RefusedFactError(f"{what} is not JSON: {exc}") from exc


def _encode(what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise RefusedFactError(
            f"{what} holds a lone surrogate at {exc.start}", hint="use safe_text()"
        ) from exc


def _check_projected(fact: Fact, payload: Any) -> None:  # noqa: ANN401
    kind, form = _PROJECTED[fact.name]
    if fact.kind != kind:
        raise RefusedFactError(f"{fact.name} is of kind {kind}, not {fact.kind}")
    try:
        value = msgspec.convert(payload, form)
    except msgspec.ValidationError as exc:
        raise RefusedFactError(f"payload of {fact.name}: {exc}") from exc
    if isinstance(value, MessageRecord):
        _check_record(value)


def _check_record(record: MessageRecord) -> None:
    check_text("message id", record.id, MAX_IDENTITY)
    if not 1 <= record.order_seq <= MAX_SEQ:
        raise RefusedFactError(f"order {record.order_seq!r} of message {record.id!r}")


def _check_start(fact: Fact, meta: Any) -> None:  # noqa: ANN401
    members = cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}
    incarnation = members.get("incarnation")
    if fact.kind != FactKind.ANCHOR or not isinstance(incarnation, str):
        raise RefusedFactError(
            "session/start is an anchor with its incarnation in meta",
            hint="use bootstrap_facts()",
        )
