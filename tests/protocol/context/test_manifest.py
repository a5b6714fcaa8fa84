"""The identity of a manifest, what it says of the pin, and its size."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec
import pytest

from greenroom.protocol import (
    ItemId,
    MessageId,
    MessageRecord,
    RunId,
    SessionId,
    SkillContext,
    TextBlock,
    ViewBuilder,
    canonical_json,
    sha256_hex,
)
from greenroom.protocol.context import (
    Boundary,
    Numbers,
    Preflight,
    Reconstruction,
    RequestIdentity,
    RequestKind,
    Sent,
    Tally,
    TapeState,
    assemble_manifest,
    checkpoint_of,
    choose_policy,
    inherited_pin,
    manifest_fact,
    manifest_hash,
    stored_manifest,
)

KIND = RequestKind("p", "m", "g" * 64, "t" * 64)
IDENTITY = RequestIdentity(RunId("run"), MessageId("reply"), 1, 1, "chat")
TAPE = TapeState(SessionId("s"), "life", 7, 5)


def said(order: int, text: str, role: Any = "user", at: float = 0.0) -> MessageRecord:
    return MessageRecord(
        id=MessageId(f"m{order}"),
        order_seq=order,
        role=role,
        status="sent",
        blocks=(TextBlock(id=ItemId("i"), text=text),),
        created_at=0.0,
        updated_at=at,
    )


def view_of(
    pin: MessageRecord | None = None, turns: int = 2, system="be brief"
) -> ViewBuilder:
    view = ViewBuilder("p", "m")
    view.add_system(system)
    view.pin(pin or said(1, "the first of all"))
    for order in range(3, 2 * turns + 3):
        view.add_record(said(order, f"x{order}", "user" if order % 2 else "assistant"))
    view.add_record(said(2 * turns + 3, "now"))
    view.begin_turn(said(2 * turns + 4, "", "assistant"))
    view.prefix_user("remember")
    view.skills = (SkillContext(name="pdf", content_hash="1" * 64),)
    return view


def made(view: ViewBuilder, identity=IDENTITY, before=None, first_pin=None):
    tally = Tally()
    tally.show(view.messages)
    numbers = Numbers(Preflight(10_000, 4_000, tally.whole.tokens, 3), "configured")
    return assemble_manifest(
        identity,
        TAPE,
        choose_policy(),
        view,
        tally,
        numbers,
        KIND,
        before,
        view.messages,
        first_pin=first_pin,
    )


def next_one():
    view = view_of()
    before = Sent(stored_manifest(made(view), 1.0), view.messages, 0)
    later = attrs.evolve(IDENTITY, request_seq=2, origin="tool_loop")
    return made(view, later, before, made(view).pin)


@pytest.mark.contract("CTX-04")
def test_the_same_inputs_at_two_times_have_one_identity():
    early, late = stored_manifest(next_one(), 1.0), stored_manifest(next_one(), 99.0)
    assert early.manifest_hash == late.manifest_hash
    assert early.view_id == late.view_id
    assert early.view_id.startswith("view_")
    assert len(early.view_id) == 5 + 16
    assert early.assembled_at != late.assembled_at
    assert manifest_fact(early).key == manifest_fact(late).key
    assert manifest_fact(early).key == f"view:s:reply:2:{early.manifest_hash}"
    assert early.is_sound


def changed_fields(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return every field of a JSON value, changed alone: the whole value with it."""
    if isinstance(value, dict):
        found = []
        for name, field in value.items():
            found += [
                (f"{path}.{name}{at}", {**value, name: other})
                for at, other in changed_fields(field)
            ]
        return found
    if isinstance(value, list):
        found = [("[]", [*value, value[0]])] if value else []
        for number, field in enumerate(value):
            found += [
                (f"[{number}]{at}", [*value[:number], other, *value[number + 1 :]])
                for at, other in changed_fields(field)
            ]
        return found
    if isinstance(value, bool):
        return [("", not value)]
    return [("", value + 1 if isinstance(value, int) else f"{value}x")]


@pytest.mark.contract("CTX-04")
def test_every_field_of_a_manifest_is_part_of_its_identity():
    manifest = next_one()
    hashed = manifest_hash(manifest)
    value = msgspec.json.decode(canonical_json(manifest))
    names = {at.split(".")[1].split("[")[0] for at, _ in changed_fields(value)}
    wanted = {
        "executionContract",
        "executionRef",
        "runId",
        "tapeIncarnationId",
        "skillContexts",
        "requestSeq",
        "included",
        "excluded",
        "tokenBudget",
        "prefix",
        "pin",
        "hashes",
        "reconstructionAnchorEntryId",
    }
    assert wanted <= names
    for at, other in changed_fields(value):
        assert manifest_hash(other) != hashed, at  # type: ignore[arg-type]


@pytest.mark.contract("CTX-02")
def test_what_is_from_no_message_is_told_with_its_hash():
    view = view_of()
    view.prefix_user("obey", "directive_context")
    state = Reconstruction(cursor_order_seq=3, summary="sum", reason="why")
    checkpoint = checkpoint_of(Boundary("compaction/auto", 5, state))
    assert checkpoint is not None
    view.add_checkpoint(checkpoint.text, checkpoint.sections)
    included = made(view).included
    told = {part.reason: part.content_hash for part in included}
    texts = {
        "summary_checkpoint": "sum",
        "reconstruction_checkpoint": "why",
        "memory_context": "remember",
        "directive_context": "obey",
    }
    for reason, text in texts.items():
        assert told[reason] == sha256_hex(text)
    synthetic = {part.reason for part in included if part.source == "synthetic"}
    assert synthetic == {*texts, "system_prompt"}
    assert sum(part.count for part in included) == len(view.messages)


@pytest.mark.contract("CTX-32")
def test_a_pin_is_named_by_message_place_and_hashes_and_not_copied():
    manifest = made(view_of())
    assert manifest.pin is not None
    assert (manifest.pin.message_id, manifest.pin.order_seq) == ("m1", 1)
    assert manifest.pin.source_content_hash != manifest.pin.content_hash
    assert "the first of all" not in canonical_json(manifest)
    assert "pinned_first_user" in [part.reason for part in manifest.included]


@pytest.mark.contract("CTX-34")
@pytest.mark.parametrize(
    "view",
    [
        view_of(said(1, "the first of all", at=5.0)),
        view_of(said(1, "edited")),
        view_of(said(2, "the first of all")),
        view_of(system="be long"),
    ],
    ids=["revision", "words", "identity", "prefix"],
)
def test_a_later_request_keeps_the_pin_only_unchanged(view):
    later = attrs.evolve(IDENTITY, request_seq=2, origin="tool_loop")
    recovery = attrs.evolve(later, origin="context_recovery")
    first = made(view_of()).pin
    assert first is not None
    for identity in (later, recovery):
        assert made(view_of(), identity, first_pin=first).pin == first
        assert made(view, identity, first_pin=first).pin is None
    assert not inherited_pin(None, first)
    assert not inherited_pin(first, None)


def test_a_manifest_does_not_grow_with_the_history():
    small, large = (
        len(canonical_json(made(view_of(turns=turns)))) for turns in (2, 2_000)
    )
    assert large - small < 100


@pytest.mark.contract("CTX-06")
def test_a_policy_is_requested_or_the_default_or_in_place_of_one_that_is_none():
    told = [
        (chosen.policy, chosen.selection, chosen.pins)
        for chosen in map(
            choose_policy,
            [None, "cache_aware_context_v1", "legacy_context_v1", "best_context_v9"],
        )
    ]
    assert told == [
        ("cache_aware_context_v2", "default", True),
        ("cache_aware_context_v1", "requested", False),
        ("legacy_context_v1", "requested", False),
        ("cache_aware_context_v2", "fallback_default", True),
    ]
