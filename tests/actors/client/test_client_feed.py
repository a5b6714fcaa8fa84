from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.endpoints.client import Address
from greenroom.actors.endpoints.client._feed import MAX_BYTES, MAX_EVENTS, Feed
from greenroom.client import AddressError
from greenroom.protocol import (
    ItemId,
    MessageId,
    MessageRetracted,
    RunId,
    SessionId,
    StreamUpdated,
)
from greenroom.protocol.gateway import Attached, EndedNotice, EventNotice

SESSION = SessionId("s")


def durable(seq: int, name: str = "m", *, more: bool = False) -> EventNotice:
    event = MessageRetracted(session_id=SESSION, seq=seq, message_id=MessageId(name))
    return EventNotice(event, more=more)


DELTA = EventNotice(
    StreamUpdated(
        session_id=SESSION,
        run_id=RunId("r"),
        message_id=MessageId("m"),
        item_id=ItemId("i"),
        kind="text",
        text="x",
    )
)


def begun(seq: int = 5) -> Feed:
    feed = Feed(SESSION)
    feed.begin(Attached(seq=seq))
    return feed


def taken(feed: Feed) -> list[tuple[str, int | None]]:
    found: list[tuple[str, int | None]] = []
    while not feed.is_empty:
        event, seq = feed.take()
        found.append((getattr(event, "message_id", ""), seq))
    return found


def test_what_was_told_before_is_not_told_again():
    feed = begun(5)
    for notice in (durable(5), durable(6), durable(6), durable(4), durable(7)):
        feed.put(notice, 10)
    assert taken(feed) == [("m", 6), ("m", 7)]


def test_events_of_one_fact_are_told_together_and_move_the_cursor_last():
    feed = begun(5)
    feed.put(durable(6, "a", more=True), 10)
    assert feed.is_empty
    feed.put(durable(6, "b"), 10)
    assert taken(feed) == [("a", None), ("b", 6)]


def test_a_fact_that_did_not_come_whole_is_not_told():
    feed = begun(5)
    feed.put(durable(6, "a", more=True), 10)
    feed.finish("lost")
    assert taken(feed) == []


def test_a_delta_moves_no_cursor():
    feed = begun(5)
    feed.put(DELTA, 10)
    assert taken(feed) == [("m", None)]


def test_over_its_bytes_a_feed_ends_and_what_it_has_is_still_there():
    feed = begun(5)
    feed.put(durable(6), MAX_BYTES)
    feed.put(durable(7), 1)
    feed.put(durable(8), 1)
    assert feed.end == "lost"
    assert taken(feed) == [("m", 6)]


def test_over_its_number_of_events_a_feed_ends():
    feed = begun(5)
    for _ in range(MAX_EVENTS + 2):
        feed.put(DELTA, 1)
    assert feed.end == "lost"
    assert len(taken(feed)) <= MAX_EVENTS + 1


def test_what_is_taken_makes_room():
    feed = begun(0)
    for seq in range(1, 10):
        feed.put(durable(seq), MAX_BYTES // 2 + 1)
        assert feed.take()[1] == seq
    assert feed.end is None


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("deleted", "deleted"),
        ("rewound", "rewound"),
        ("unloaded", "lost"),
        ("slow", "lost"),
        ("closed", "lost"),
    ],
)
def test_why_a_feed_ended_is_why_the_gateway_says(reason, end):
    feed = begun()
    feed.ended(EndedNotice(SESSION, reason))
    feed.finish("lost")
    assert feed.end == end


async def test_whoever_waits_is_woken_by_an_event_and_by_the_end():
    feed = begun()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.wait)
        await wait_all_tasks_blocked()
        feed.put(DELTA, 1)
    feed.take()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.wait)
        await wait_all_tasks_blocked()
        feed.finish("lost")


#### Addresses


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8427/", "ws://127.0.0.1:8427/acp"),
        ("ws://host:1/acp", "ws://host:1/acp"),
        ("https://example.org", "wss://example.org:443/acp"),
        ("wss://example.org/under/", "wss://example.org:443/under/acp"),
        ("http://[::1]:80", "ws://[::1]:80/acp"),
    ],
)
def test_a_url_of_the_console_or_the_websocket_is_an_address(url, address):
    assert str(Address.of(url)) == address


def test_the_default_port_is_not_named_to_the_gateway():
    assert Address.of("http://[::1]:80").host_header == "[::1]"
    assert Address.of("http://host:8427").host_header == "host:8427"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:8427",
        "ftp://host",
        "http://",
        "http://h:99999",
        "http://secret@host",
        "http://u:secret@host",
        "http://host/?token=secret",
        "http://host/#secret",
        "http://host/\nsecret",
        "http://[secret",
    ],
)
def test_no_address_is_refused_without_quoting_what_may_be_secret(url):
    with pytest.raises(AddressError) as refused:
        Address.of(url)
    assert "secret" not in str(refused.value)


def test_a_token_goes_unencrypted_to_this_machine_alone():
    for url in ("http://127.0.0.1", "http://localhost:1", "https://example.org"):
        Address.of(url).check_token("token", insecure=False)
    far = Address.of("http://example.org")
    with pytest.raises(AddressError, match="unencrypted"):
        far.check_token("token", insecure=False)
    far.check_token("token", insecure=True)
    with pytest.raises(AddressError) as refused:
        far.check_token("secret\r\nHost: x", insecure=True)
    assert "secret" not in str(refused.value)
