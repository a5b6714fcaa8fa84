"""Failures from answers and exceptions, whatever these hold."""

from __future__ import annotations

import errno
import socket
from typing import Any, NoReturn

import pytest

from greenroom.protocol import FailureClass, ProviderFailure, classify_failure
from greenroom.protocol.providers import (
    failure_from_exception,
    failure_from_response,
    make_failure,
)


@pytest.mark.parametrize(
    ("status", "body", "code", "said"),
    [
        (
            401,
            b'{"error":{"message":"Incorrect API key","code":"invalid_api_key"}}',
            "invalid_api_key",
            "the provider answered 401: Incorrect API key",
        ),
        (
            401,
            b'{"error":{"code":401,"message":"Invalid key","type":"auth_error"}}',
            "auth_error",
            "the provider answered 401: Invalid key",
        ),
        (
            404,
            b'{"error":"model \'x\' not found"}',
            None,
            "the provider answered 404: model 'x' not found",
        ),
        (
            400,
            b'{"object":"error","message":"bad","type":"BadRequestError","code":400}',
            "BadRequestError",
            "the provider answered 400: bad",
        ),
        (
            422,
            b'{"detail":[{"loc":["body","messages"],"msg":"field required"}]}',
            None,
            "field required",
        ),
        (
            429,
            b'[{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"slow"}}]',
            None,
            "the provider answered 429: slow",
        ),
        (502, b"<html>\n<b>Bad   Gateway</b>", None, "<html> <b>Bad Gateway</b>"),
        (500, b"", None, "the provider answered 500"),
        (500, b"\xff\xfe\x00", None, "\ufffd\ufffd\ufffd"),
        (503, b"[]", None, "the provider answered 503"),
        (301, b"", None, "the provider answered 301"),
    ],
)
def test_an_answer_becomes_a_failure(
    status: int, body: bytes, code: str | None, said: str
) -> None:
    failure = failure_from_response(status, {}, body)

    assert (failure.status, failure.code) == (status, code)
    assert said in failure.message


def test_only_headers_that_bear_on_a_retry_are_kept() -> None:
    headers = {
        "retry-after": "3",
        "retry-after-ms": "2900",
        "x-should-retry": "true",
        "set-cookie": "secret",
    }

    kept = failure_from_response(429, headers, b"").headers
    assert kept == {k: v for k, v in headers.items() if k != "set-cookie"}


@pytest.mark.parametrize("name", ["x-request-id", "request-id", "x-generation-id"])
def test_the_id_of_the_request_is_told(name: str) -> None:
    assert "(request req_7)" in failure_from_response(500, {name: "req_7"}, b"").message


#### Bounds (TRY-10)


class Hostile(Exception):
    """Raises, or answers with something else, whatever it is asked."""

    def __str__(self) -> NoReturn:
        raise RuntimeError("no text")

    @property
    def code(self) -> NoReturn:
        raise RuntimeError("no code")

    @property
    def status_code(self) -> NoReturn:
        raise KeyboardLookup

    @property
    def headers(self) -> object:
        return self

    def get(self, name: str) -> NoReturn:
        raise RuntimeError(name)

    @property
    def retryable(self) -> str:
        return "yes"

    @property
    def errno(self) -> list[int]:
        return [1]


class KeyboardLookup(Exception):
    pass


class Odd(Exception):
    code: Any = 7
    status: Any = "500"
    headers: Any = None
    retryable: Any = 1


def cycle() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def chain(length: int) -> BaseException:
    error: BaseException | None = None
    for number in reversed(range(length)):
        link = ValueError(f"link {number}")
        link.__cause__ = error
        error = link
    assert error is not None
    return error


@pytest.mark.contract("TRY-10")
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Hostile(), "Hostile"),
        (Odd("odd"), "odd"),
        (cycle(), "first <- second"),
        (chain(9), "link 0 <- link 1 <- link 2 <- link 3 <- link 4"),
        (ValueError(), "ValueError"),
        (
            BaseExceptionGroup("group", [ValueError("in it")]),
            "group <- in it",
        ),
    ],
)
def test_reading_an_exception_never_raises_and_ends(
    error: BaseException, message: str
) -> None:
    failure = failure_from_exception(error)

    assert failure == ProviderFailure(message=message)
    assert classify_failure(failure) is FailureClass.UNKNOWN


class Told(Exception):
    def __init__(self, size: int) -> None:
        super().__init__("m" * size)
        self.code = "c" * size
        self.status_code = 503
        self.headers = {"retry-after": "9" * size, "x-should-retry": "true", "x": "y"}
        self.retryable = True


@pytest.mark.contract("TRY-10")
def test_what_is_kept_of_a_failure_is_bounded() -> None:
    body = b'{"error": {"message": "%b", "code": "%b"}}' % (b"m" * 10**6, b"c" * 10**6)
    headers = {"retry-after": "9" * 10**6, "x-request-id": "i" * 10**6}

    for failure in (
        failure_from_exception(Told(10**6)),
        failure_from_response(503, headers, body),
        make_failure("m" * 10**6, "c" * 10**6),
    ):
        assert len(failure.message) <= 2_048
        assert len(failure.code or "") == 128
        assert all(len(value) <= 256 for value in failure.headers.values())


def test_what_an_exception_says_of_a_retry_is_kept() -> None:
    outer = RuntimeError("outer")
    outer.__cause__ = Told(3)

    assert failure_from_exception(outer) == ProviderFailure(
        message="outer <- mmm",
        code="ccc",
        status=503,
        retryable=True,
        headers={"retry-after": "999", "x-should-retry": "true"},
    )


class Answered(Exception):
    def __init__(self) -> None:
        super().__init__("answered")
        self.response = Told(1)


def test_the_answer_that_an_exception_carries_is_read() -> None:
    failure = failure_from_exception(Answered())

    assert failure.status == 503
    assert failure.headers["retry-after"] == "9"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectionResetError(errno.ECONNRESET, "reset"), "ECONNRESET"),
        (OSError(errno.ENETUNREACH, "no net"), "ENETUNREACH"),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), "dns_failure"),
    ],
)
def test_errors_of_the_network_have_their_codes(error: OSError, code: str) -> None:
    hidden = RuntimeError("outer")
    hidden.__context__, hidden.__suppress_context__ = error, True

    for found in (failure_from_exception(error), failure_from_exception(hidden)):
        assert found.code == code
        assert classify_failure(found) is FailureClass.TRANSIENT


def test_text_that_no_store_takes_is_replaced() -> None:
    assert make_failure("a\x00b\ud800").message == "a\ufffdb\ufffd"
