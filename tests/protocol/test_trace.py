"""What is kept of a request, and what is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import (
    MAX_TRACE_BYTES,
    Counters,
    MessageId,
    RunId,
    WireRequest,
    attempt_trace,
)

SECRETS = [
    "sk-proj-abcdefghijklmnop1234567890",
    "sk-ant-api03-abcdefghijklmnop",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_abcdefghijklmnopqrstuvwxyz",
    "AKIAABCDEFGHIJKLMNOP",
    "AIzaSyA-abcdefghijklmnopqrstuvwxyz012345",
    "xoxb-123456789012-abcdefghijkl",
    "hf_abcdefghijklmnopqrstuvwxyz",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3.abcdefg",
]


def traced(body: bytes, url: str = "https://x/v1", **headers: str) -> tuple[str, bool]:
    trace = attempt_trace(
        RunId("r"),
        MessageId("m"),
        Counters(1, 2, 3),
        provider="p",
        model="m",
        at=5.0,
        wire=WireRequest(url, headers, body),
    )
    assert (trace.logical_round, trace.request_seq, trace.physical_attempt) == (1, 2, 3)
    return trace.payload, trace.truncated


@pytest.mark.contract("TRY-23")
def test_headers_are_kept_by_name_and_only_harmless_ones_with_their_value() -> None:
    payload, _ = traced(
        b'{"a":1}',
        "https://x/v1?key=in-the-query",
        Authorization="Bearer in-a-header",
        **{"x-api-key": "in-another", "content-type": "application/json"},
    )
    assert json.loads(payload) == {
        "url": "https://x/v1",
        "headers": {
            "Authorization": "[redacted]",
            "x-api-key": "[redacted]",
            "content-type": "application/json",
        },
        "body": {"a": 1},
    }


@pytest.mark.contract("TRY-23")
@pytest.mark.parametrize("secret", SECRETS)
def test_what_has_the_shape_of_a_key_is_taken_out(secret: str) -> None:
    body = json.dumps({"content": f"export KEY={secret} # mine", "n": 1})
    payload, _ = traced(body.encode())
    assert secret not in payload
    assert json.loads(payload)["body"]["content"].startswith("export KEY=[redacted]")


@pytest.mark.parametrize("depth", range(4))
def test_fields_that_hold_secrets_by_name_are_taken_out(depth: int) -> None:
    text = json.dumps({"Password": "hunter2", "x-api-key": "abc", "note": "fine"})
    for _ in range(depth):
        text = json.dumps({"said": text})
    payload, _ = traced(text.encode())
    assert "hunter2" not in payload
    assert '"abc' not in payload
    assert "fine" in payload
    json.loads(payload)


def test_words_that_only_look_like_it_stay() -> None:
    text = json.dumps({"a": "task-force-one-two-three-four", "secrets": ["x"]})
    assert json.loads(traced(text.encode())[0])["body"] == json.loads(text)


@pytest.mark.contract("TRY-23")
@pytest.mark.parametrize("size", [MAX_TRACE_BYTES - 200, MAX_TRACE_BYTES, 3 << 20])
def test_an_oversized_payload_is_cut_and_flagged(size: int) -> None:
    body = b'{"text":"' + "ä".encode() * (size // 2) + b'"}'
    payload, truncated = traced(body)
    assert truncated == (size >= MAX_TRACE_BYTES)
    assert len(payload.encode()) <= MAX_TRACE_BYTES
    if truncated:
        assert len(payload.encode()) > MAX_TRACE_BYTES - 20_000
    else:
        json.loads(payload)


@pytest.mark.contract("TRY-23")
@given(st.integers(MAX_TRACE_BYTES - 300, MAX_TRACE_BYTES + 300))
def test_no_half_of_a_secret_is_left_at_the_cut(offset: int) -> None:
    secret = "sk-proj-" + "s3cr3t" * 12
    body = b"x" * (offset - 1) + b" " + secret.encode() + b" " + b"x" * 50_000
    payload, truncated = traced(body)
    assert truncated
    assert "s3cr3t" not in payload


@pytest.mark.contract("TRY-23")
@given(st.integers(0, 90))
def test_what_moves_up_when_secrets_are_taken_out_is_whole_too(shift: int) -> None:
    secret = b"sk-proj-" + b"s3cr3t" * 12 + b" "
    payload, truncated = traced(b" " * shift + secret * 8_000)
    assert truncated
    assert "s3cr3t" not in payload


def test_odd_bytes_are_made_safe() -> None:
    payload, _ = traced(b'{"a":"\xff\x00"}', "https://x/\x00")
    payload.encode()
    assert "\x00" not in payload
    assert traced(b"")[0].endswith('"body":null}')


def test_hostile_text_costs_little() -> None:
    for text in (
        "sk-" * 100_000,
        "eyJ" * 100_000,
        '"password":' * 40_000,
        "A" * 500_000,
    ):
        traced(text.encode())
