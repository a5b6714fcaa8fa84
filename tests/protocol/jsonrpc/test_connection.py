"""Two connections back to back, and lines that no honest peer sends."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import LocalProtocolError
from greenroom.protocol.jsonrpc import (
    MAX_OPEN,
    NEED_DATA,
    Closed,
    Connection,
    ErrorObject,
    Failure,
    Invalid,
    LineBuffer,
    MessageTooLargeError,
    Notification,
    Request,
    Response,
    Withdrawn,
)


def events_of(connection: Connection, *chunks: bytes) -> list[Any]:
    """Feed each chunk, and read what it meant before the next one comes."""
    found = []
    for chunk in chunks:
        connection.receive_data(chunk)
        while (event := connection.next_event()) is not NEED_DATA:
            found.append(event)
            if isinstance(event, Closed):
                return found
    return found


def told(*lines: bytes) -> list[Any]:
    return events_of(Connection(), *(line + b"\n" for line in lines))


def plain(event: Any) -> Any:
    """Return an event as a value that can be compared."""
    match event:
        case Request(id=request_id, method=method, params=params):
            return ("request", request_id, method, json.loads(bytes(params)))
        case Notification(method=method, params=params):
            return ("notification", method, json.loads(bytes(params)))
        case Response(id=request_id, result=result):
            return ("response", request_id, json.loads(bytes(result)))
        case Failure(id=request_id, error=error):
            return ("failure", request_id, error.code)
        case Invalid(error=error, reply=reply):
            return ("invalid", error.code, json.loads(reply)["id"])
        case _:
            return event


def refusal(line: bytes) -> tuple[int, Any]:
    (event,) = told(line)
    assert isinstance(event, Invalid)
    reply = json.loads(event.reply)
    assert reply["error"] == {
        "code": event.error.code,
        "message": event.error.message,
    }
    return event.error.code, reply["id"]


#### Two sides

CHUNKS = [
    b'{"jsonrpc":"2.0","id":0,"method":"a","params":{"x":"\xc3\xa9\xf0\x9f\x98\x80"}}\r\n',
    b"\n  \r\n",
    b'{"jsonrpc":"2.0","method":"b"}\n',
    b'{"params":[1],"method":"c","id":"zero","jsonrpc":"2.0"}\n',
    b"nonsense\n",
    b'{"jsonrpc":"2.0","method":"d","params":null}\n',
]
MEANT = [
    ("request", 0, "a", {"x": "\u00e9\U0001f600"}),
    ("notification", "b", {}),
    ("request", "zero", "c", [1]),
    ("invalid", -32700, None),
    ("notification", "d", {}),
]


@given(st.lists(st.integers(0, len(b"".join(CHUNKS)))))
def test_messages_are_the_same_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    stream = b"".join(CHUNKS)
    edges = [0, *sorted(cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(edges) if a < b]

    assert [plain(event) for event in events_of(Connection(), *pieces)] == MEANT


def test_messages_are_the_same_byte_by_byte() -> None:
    pieces = [bytes([byte]) for byte in b"".join(CHUNKS)]
    assert [plain(event) for event in events_of(Connection(), *pieces)] == MEANT


def test_each_direction_numbers_its_own_requests() -> None:
    ours, theirs = Connection(), Connection()
    our_id, asked = ours.request("ping", {})
    their_id, asked_back = theirs.request("pong", {})
    assert our_id == their_id == 0

    (ping,) = events_of(theirs, asked)
    (pong,) = events_of(ours, asked_back)
    (answer,) = events_of(ours, theirs.respond(ping.id, {"a": 1}))
    (failure,) = events_of(theirs, ours.refuse(pong.id, ErrorObject(7, "no")))

    assert plain(answer) == ("response", 0, {"a": 1})
    assert plain(failure) == ("failure", 0, 7)


@pytest.mark.parametrize("request_id", [0, -1, 1.5, "a", None, 2**53, 10**30])
def test_an_id_comes_back_as_it_was(request_id: Any) -> None:
    connection = Connection()
    line = json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "x"}).encode()
    (request,) = events_of(connection, line + b"\n")

    reply = json.loads(connection.respond(request.id, {}))
    assert reply == {"jsonrpc": "2.0", "id": request_id, "result": {}}


def test_a_request_has_one_response_and_no_second() -> None:
    connection = Connection()
    events_of(connection, b'{"jsonrpc":"2.0","id":1,"method":"x"}\n')
    connection.respond(1, {})

    with pytest.raises(LocalProtocolError, match="request 1"):
        connection.respond(1, {})
    with pytest.raises(LocalProtocolError, match="request 1"):
        connection.refuse(1, ErrorObject(1, "late"))


def test_what_is_sent_is_one_line_and_text_that_is_none_is_replaced() -> None:
    connection = Connection()
    line = connection.notify("x", {"text": "two\nlines", "odd": "a\ud800b"})

    assert line.count(b"\n") == 1
    assert json.loads(line)["params"] == {"text": "two\nlines", "odd": "a\ufffdb"}


#### Responses


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (b'"result":null', ("response", 0, {})),
        (b'"result":{"a":1}', ("response", 0, {"a": 1})),
        (b'"result":[1]', ("response", 0, [1])),
        (b'"error":null,"result":{}', ("response", 0, {})),
        (b'"error":{"code":5,"message":"no"},"result":{}', ("failure", 0, 5)),
        (b'"error":{"code":5,"message":"no","data":[1]}', ("failure", 0, 5)),
        (b'"error":5', ("failure", 0, -32603)),
        (b'"error":{"code":"x"}', ("failure", 0, -32603)),
        (b'"error":' + b"[" * 100_000 + b"]" * 100_000, ("invalid", -32600, None)),
        (b'"extra":1', ("failure", 0, -32603)),
    ],
)
def test_a_response_of_any_shape_ends_the_request(
    members: bytes, expected: object
) -> None:
    connection = Connection()
    connection.request("x", {})

    (event,) = events_of(connection, b'{"jsonrpc":"2.0","id":0,%s}\n' % members)

    assert plain(event) == expected


@pytest.mark.parametrize("request_id", [b"1", b"0.0", b'"0"', b"-1"])
def test_a_response_to_nothing_is_ignored(request_id: bytes) -> None:
    connection = Connection()
    connection.request("x", {})
    line = b'{"jsonrpc":"2.0","id":%s,"result":{}}\n' % request_id
    assert events_of(connection, line) == []

    (answer,) = events_of(connection, b'{"jsonrpc":"2.0","id":0,"result":{}}\n')
    assert isinstance(answer, Response)
    assert events_of(connection, b'{"jsonrpc":"2.0","id":0,"result":{}}\n') == []


@pytest.mark.parametrize("member", [b"", b'"id":null,'])
def test_an_error_without_an_id_is_a_complaint(member: bytes) -> None:
    line = b'{"jsonrpc":"2.0",%s"error":{"code":-32700,"message":"?"}}' % member
    (event,) = told(line)
    assert plain(event) == ("failure", None, -32700)


def test_the_requests_that_wait_are_bounded_both_ways() -> None:
    connection = Connection()
    for _ in range(MAX_OPEN):
        connection.request("x", {})
    with pytest.raises(LocalProtocolError, match="wait for their response"):
        connection.request("x", {})

    flood = [
        b'{"jsonrpc":"2.0","id":%d,"method":"x"}\n' % number
        for number in range(MAX_OPEN + 1)
    ]
    *taken, refused = events_of(connection, *flood)
    assert all(isinstance(event, Request) for event in taken)
    assert plain(refused) == ("invalid", -32600, MAX_OPEN)
    connection.respond(0, {})
    (again,) = events_of(connection, flood[-1])
    assert again.id == MAX_OPEN


#### Withdrawing


def test_a_request_can_be_withdrawn_by_either_side() -> None:
    ours, theirs = Connection(), Connection()
    request_id, asked = ours.request("x", {})
    events_of(theirs, asked)

    (withdrawn,) = events_of(theirs, ours.withdraw(request_id))
    assert withdrawn == Withdrawn(request_id)
    # It is still owed a response, which nobody waits for.
    late = theirs.refuse(request_id, ErrorObject(-32800, "cancelled"))
    assert events_of(ours, late) == []
    assert ours.withdraw(request_id) == b""


@pytest.mark.parametrize(
    "params", [b'{"requestId":7}', b'{"requestId":[]}', b"{}", b"5"]
)
def test_withdrawing_what_is_not_open_is_ignored(params: bytes) -> None:
    line = b'{"jsonrpc":"2.0","method":"$/cancel_request","params":%s}' % params
    assert told(line) == []


#### Hostile lines


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"nonsense", -32700),
        (b"{", -32700),
        (b"[", -32700),
        (b"[1,", -32700),
        (b"42 43", -32700),
        (b'{"jsonrpc":"2.0","method":"x","params":{"a":\xff}}', -32700),
        (b'{"jsonrpc":"2.0","method":"x","params":{"a":"\xff"}}', -32700),
        (b'{"jsonrpc":"2.0","method":"\\ud800","params":{', -32700),
        (b'{"jsonrpc":"2.0","method":"\\ud800","id":%s}' % (b"1" * 5_000), -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"x"}]', -32600),
        (b"42", -32600),
        (b'"text"', -32600),
        (b"null", -32600),
        (b'{"id":1,"method":"x"}', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"x"}', -32600),
        (b'{"jsonrpc":2.0,"id":1,"method":"x"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"x"}', -32600),
        (b'{"jsonrpc":"2.0","id":[1],"method":"x"}', -32600),
        (b'{"jsonrpc":"2.0","id":1e999,"method":"x"}', -32600),
        (b'{"jsonrpc":"2.0","id":%s,"method":"x"}' % (b"1" * 2_000), -32600),
        (b'{"jsonrpc":"2.0","id":"%s","method":"x"}' % (b"a" * 2_000), -32600),
        (b'{"jsonrpc":"2.0","id":null,"result":{}}', -32600),
        (b'{"jsonrpc":"2.0"}', -32600),
        (b'{"jsonrpc":"2.0","method":"x","params":' + b"[" * 100_000, -32600),
    ],
)
def test_a_line_that_is_no_message_is_refused_under_no_id(
    line: bytes, code: int
) -> None:
    assert refusal(line) == (code, None)


def test_a_bad_line_changes_nothing_for_the_next() -> None:
    good = b'{"jsonrpc":"2.0","id":1,"method":"x"}'
    events = told(b"[" + good + b"]", good)
    assert [plain(event)[0] for event in events] == ["invalid", "request"]


def test_an_id_in_use_is_refused_and_the_first_request_stays() -> None:
    connection = Connection()
    line = b'{"jsonrpc":"2.0","id":1,"method":"x"}\n'
    first, second = events_of(connection, line, line)
    assert isinstance(first, Request)
    assert plain(second) == ("invalid", -32600, None)
    assert json.loads(connection.respond(1, {}))["id"] == 1


@pytest.mark.parametrize("escape", [b"\\ud83d", b"\\uDC00", b"\\uD83d x"])
def test_a_lone_surrogate_is_replaced(escape: bytes) -> None:
    # What JSON.stringify makes of a string that was cut inside a character.
    (event,) = told(b'{"jsonrpc":"2.0","method":"x","params":{"t":"%s"}}' % escape)
    assert json.loads(bytes(event.params))["t"].startswith("\ufffd")


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_no_bytes_at_all_break_the_connection(chunks: list[bytes]) -> None:
    connection = Connection()
    events_of(connection, *filter(None, chunks), b"\n")

    (event,) = events_of(connection, b'{"jsonrpc":"2.0","id":1,"method":"x"}\n')
    assert isinstance(event, Request)


#### Sizes and ends


@pytest.mark.slow  # two copies of 20 MB
def test_a_line_of_twenty_megabytes_is_one_message() -> None:
    text = b"a" * 20_000_000
    line = b'{"jsonrpc":"2.0","method":"x","params":{"t":"%s"}}\n' % text
    pieces = [line[at : at + 65_536] for at in range(0, len(line), 65_536)]
    (event,) = events_of(Connection(), *pieces)
    assert len(event.params) == len(text) + 8


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_that_is_too_long_ends_the_connection(end: bytes) -> None:
    connection = Connection(max_message_bytes=100)
    request_id, _ = connection.request("x", {})
    at_limit = b'{"jsonrpc":"2.0","method":"y"}'.ljust(100)
    (event,) = events_of(connection, at_limit + b"\n")
    assert isinstance(event, Notification)

    (closed,) = events_of(connection, b"a" * 101 + end)
    assert closed.unanswered == (request_id,)
    assert isinstance(closed.error, MessageTooLargeError)
    assert json.loads(closed.reply) == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32600, "message": str(closed.error)},
    }
    # For good: nothing that comes after it is looked at.
    (still,) = events_of(connection, at_limit + b"\n")
    assert isinstance(still.error, MessageTooLargeError)


def test_the_end_of_the_input_fails_what_is_asked_and_what_would_be() -> None:
    connection = Connection()
    request_id, _ = connection.request("x", {})
    whole, closed = events_of(connection, b'{"jsonrpc":"2.0","method":"x"}\n{"js', b"")

    assert isinstance(whole, Notification)
    assert closed == Closed((request_id,))
    assert connection.next_event() == Closed(())
    with pytest.raises(LocalProtocolError, match="has closed"):
        connection.request("x", {})
    assert connection.notify("x", {})


def test_a_long_line_is_searched_once() -> None:
    class Counting(bytearray):
        looked = 0

        def find(self, sub: bytes, start: int = 0) -> int:  # type: ignore[override]
            Counting.looked += len(self) - start
            return super().find(sub, start)

    lines = LineBuffer()
    lines._bytes = Counting()
    for _ in range(100):
        lines.feed(b"a" * 100)
        assert lines.next_line() is None
    assert Counting.looked == 10_000


def test_raw_params_are_encoded_as_they_are() -> None:
    line = Connection().notify("x", msgspec.Raw(b'{"a":1}'))
    assert json.loads(line)["params"] == {"a": 1}
