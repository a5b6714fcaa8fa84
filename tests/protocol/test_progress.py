from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import (
    ItemId,
    ProgressSnapshot,
    ToolCallBlock,
    normalise_result,
    observe,
)

UUID = "0b8f7a1e-9f6e-4f0a-8f6e-1d2c3b4a5968"
OTHER = "11111111-2222-4333-8444-555555555555"


def call(name="read", arguments='{"path": "a"}', response="text"):
    return ToolCallBlock(
        id=ItemId("i"), call_id="c", name=name, arguments=arguments, response=response
    )


def fingerprint(*calls):
    return observe(None, calls).snapshot.fingerprint


def run(*batches, start: ProgressSnapshot | None = None):
    seen, snapshot = [], start
    for batch in batches:
        seen.append(observe(snapshot, batch))
        snapshot = seen[-1].snapshot
    return seen


@pytest.mark.contract("TOL-18")
def test_the_fingerprint_is_24_hex_and_ignores_spelling():
    plain = fingerprint(call(arguments='{"a": 1, "b": [2, {"c": 3}]}'))
    assert len(plain) == 24
    assert int(plain, 16) >= 0
    assert fingerprint(call(arguments='{ "b":[2,{"c":3}],"a":1 }')) == plain
    assert fingerprint(call(" read ", '{"a": 1, "b": [2, {"c": 3}]}')) == plain
    raw = fingerprint(call(arguments='{"a": '))
    assert fingerprint(call(arguments='  {"a":  '.strip())) == fingerprint(
        call(arguments='{"a":')
    )
    assert raw != plain


@pytest.mark.contract("TOL-18")
@pytest.mark.parametrize(
    "other",
    [
        [call(arguments='{"path": "b"}')],
        [call(name="write")],
        [call(response="other text")],
        [call(), call()],
        [call(arguments='{"path": "a" ')],
    ],
)
def test_the_fingerprint_sees_names_values_results_and_number(other):
    assert fingerprint(*other) != fingerprint(call())


@pytest.mark.contract("TOL-18")
def test_the_fingerprint_sees_the_order_of_the_calls():
    one, two = call(name="one"), call(name="two")
    assert fingerprint(one, two) != fingerprint(two, one)


VOLATILE = [
    "timestamp",
    "time",
    "created_at",
    "updatedAt",
    "completed-at",
    "startedat",
    "FinishedAt",
    "requestId",
    "tool_call_id",
    "trace-id",
    "runid",
    "call_id",
    "invocationId",
    "execution_id",
    "eventId",
    "nonce",
]


@pytest.mark.contract("TOL-19")
@pytest.mark.parametrize("key", VOLATILE)
def test_what_stands_under_a_volatile_key_is_masked(key):
    one = json.dumps({key: "1", "data": {"deep": [{key: 2}]}})
    two = json.dumps({key: "9", "data": {"deep": [{key: None}]}})
    assert normalise_result(one) == normalise_result(two)


@pytest.mark.contract("TOL-19")
@pytest.mark.parametrize(
    ("one", "two", "equal"),
    [
        ("at 2026-01-02T03:04:05Z", "at 2027-11-12T13:14:15.123+02:00", True),
        ("on 2026-01-02 03:04", "on 2026-01-02 09:59", True),
        ("on 2026-01-02", "on 2026-01-03", False),
        (f"request_id: {UUID}", f"request_id: {OTHER}", True),
        (f'"traceId": "{UUID}"', f'"traceId": "{OTHER}"', True),
        (f"run id {UUID}", f"run id {OTHER}", True),
        (f"order {UUID}", f"order {OTHER}", False),
        (f'{{"id": "{UUID}"}}', f'{{"id": "{OTHER}"}}', False),
        ('{"note": "2026-01-02T03:04:05Z"}', '{"note": "2026-02-02T03:04:05Z"}', True),
        ('{"count": 1}', '{"count": 2}', False),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', True),
    ],
)
def test_only_what_changes_by_itself_is_masked(one, two, equal):
    assert (normalise_result(one) == normalise_result(two)) == equal


@given(st.text(max_size=200))
def test_any_result_can_be_compared(text):
    assert normalise_result(text) == normalise_result(text)


def test_a_result_of_any_depth_and_length_can_be_compared():
    assert observe(None, [call(response="[" * 100_000)])
    assert observe(None, [call(response="[" * 500 + "]" * 500)])
    assert observe(None, [call(response="x" * 5_000_000)])


@pytest.mark.contract("TOL-20")
def test_a_repeated_batch_is_noted_once_and_stops_the_run_at_the_fourth():
    first, second, third, fourth = run(*[[call()]] * 4)
    assert [o.verdict for o in (first, second, third)] == ["continue"] * 3
    assert (first.note, third.note, fourth.note) == (None, None, None)
    note = json.loads(second.note or "")
    assert (note["type"], note["repeatedBatchCount"]) == ("agent_no_progress", 2)
    assert fourth.verdict == "stop"


@pytest.mark.contract("TOL-20")
def test_another_batch_begins_the_count_again():
    a, b = [call()], [call(name="other")]
    verdicts = [o.verdict for o in run(a, a, b, a, a, a, a)]
    assert verdicts == ["continue"] * 6 + ["stop"]


WEAK = [
    "ok",
    "Success",
    "succeeded",
    "done.",
    "true",
    "completed",
    '"ok"',
    '{"ok": true}',
    '{"status": "success", "result": "done"}',
    '{"timestamp": 5, "requestId": "x"}',
    '{"ok": true, "timestamp": 5, "time": 6}',
    "{}",
]
STRONG = [
    "",
    "no",
    "ok then",
    "false",
    "5",
    "[]",
    '{"ok": false}',
    '{"ok": true, "path": "a"}',
    '{"status": "success", "result": "done", "ok": true}',
    '{"result": {"ok": true}}',
]


@pytest.mark.contract("TOL-21")
@pytest.mark.parametrize(
    ("response", "evidence"),
    [*((text, "weak") for text in WEAK), *((text, "strong") for text in STRONG)],
)
def test_only_bare_acknowledgements_are_weak_evidence(response, evidence):
    assert observe(None, [call(response=response)]).snapshot.evidence == evidence


@pytest.mark.contract("TOL-21")
def test_weak_evidence_never_stops_and_one_sibling_makes_it_strong():
    seen = run(*[[call(response="ok")]] * 10)
    assert all(o.verdict != "stop" for o in seen)
    mixed = [call(response="ok"), call(name="two", response="42 rows")]
    assert run(*[mixed] * 4)[-1].verdict == "stop"


@pytest.mark.contract("TOL-21")
def test_equal_calls_with_new_results_are_noted_at_four_and_asked_about_at_eight():
    seen = run(*[[call(response=f"state {n}")] for n in range(16)])
    notes = [number for number, o in enumerate(seen, 1) if o.note]
    asked = [number for number, o in enumerate(seen, 1) if o.verdict == "ask"]
    assert (notes, asked) == ([4], [8, 16])
    assert all(o.verdict != "stop" for o in seen)


@pytest.mark.contract("TOL-22")
def test_a_snapshot_survives_its_json_and_goes_on_counting():
    third = run(*[[call()]] * 3)[-1].snapshot
    again = msgspec.json.decode(msgspec.json.encode(third), type=ProgressSnapshot)
    assert again == third
    assert run([call()], start=again)[-1].verdict == "stop"
