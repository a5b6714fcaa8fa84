"""Clients never take the descriptors that the engine needs."""

from __future__ import annotations

import resource

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from greenroom.actors.endpoints.gateway import listen, raise_descriptors
from greenroom.actors.endpoints.gateway._descriptors import (
    WANTED_DESCRIPTORS,
    room_for,
    room_to_wait,
)

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "clients", "room"),
    [
        (NO_LIMIT, 4_096, 4_096),
        (8_192, 4_096, 4_096),
        (1_024, 4_096, 512),
        (1_024, 10, 10),
        (256, 4_096, 64),
    ],
)
def test_clients_leave_descriptors_for_the_engine(monkeypatch, soft, clients, room):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, NO_LIMIT))
    assert room_for(clients) == room


@pytest.mark.parametrize(
    ("soft", "room"), [(NO_LIMIT, 256), (1_024, 256), (256, 64), (64, 16)]
)
def test_whoever_waits_to_come_in_leaves_descriptors_too(monkeypatch, soft, room):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, NO_LIMIT))
    assert room_to_wait(256) == room
    assert soft == NO_LIMIT or room + room_for(4_096) <= 3 * soft // 4


async def test_no_more_may_wait_to_come_in_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, NO_LIMIT))
    async with listen(port=0) as gateway, trio.open_nursery() as nursery:
        ends = []
        for _ in range(9):
            ours, theirs = memory_stream_pair()
            nursery.start_soon(gateway.handle, theirs)
            await wait_all_tasks_blocked()
            ends.append(ours)
        assert gateway._counted()["gateway_waiting"] == 4
        assert await ends[0].receive_some(1) == b""
        nursery.cancel_scope.cancel()


async def test_a_gateway_lets_in_no_more_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, NO_LIMIT))
    async with listen(port=0) as gateway:
        assert gateway._max_connections == 512


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (256, NO_LIMIT, [(WANTED_DESCRIPTORS, NO_LIMIT)]),
        (1_024, 2_048, [(2_048, 2_048)]),
        (1_024, 1_024, []),
        (20_000, NO_LIMIT, []),
        (NO_LIMIT, NO_LIMIT, []),
    ],
)
def test_a_server_asks_for_what_it_may_have(monkeypatch, soft, hard, expected):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    raise_descriptors()
    assert asked == expected


def test_a_server_does_with_what_it_has_if_it_may_have_no_more(monkeypatch):
    def refuse(_, limits):
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, NO_LIMIT))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_descriptors()
