"""Who may change a session that is not loaded, and who is told that he may not."""

from __future__ import annotations

import pytest
from kit.stores import S1, World

from greenroom.protocol import SessionId, StorageError
from greenroom.storage import (
    Held,
    SessionRow,
    archive_session,
    rename_session,
)


def test_a_change_takes_the_session_and_gives_it_back(world: World) -> None:
    peer = world.join()
    grant = peer.tape().grant
    peer.store.release(grant, now=1.0)
    row = rename_session(
        peer.store, peer.member, S1, " new  name ", revision="r", now=2.0
    )
    assert isinstance(row, SessionRow)
    assert (row.settings.title, row.updated_at) == ("new name", 2.0)
    assert peer.store.locate(S1) is None


def test_a_session_that_is_loaded_here_is_not_fenced_by_a_change(world: World) -> None:
    peer = world.join("this window")
    grant = peer.tape().grant
    held = archive_session(
        peer.store, peer.member, S1, archived=True, revision="r", now=2.0
    )
    assert isinstance(held, Held)
    assert held.owner.node == "this window"
    assert peer.store.inbox(grant) == []


def test_what_is_so_already_writes_nothing(world: World) -> None:
    peer = world.join()
    peer.store.release(peer.tape().grant, now=1.0)
    for revision in ("1", "2"):
        archive_session(
            peer.store, peer.member, S1, archived=True, revision=revision, now=2.0
        )
        assert peer.store.page(S1, 0).head == 3


def test_the_unknown_and_the_dead_change_nothing(world: World) -> None:
    peer, other = world.join("one", ttl=10.0), world.join("two")
    unknown = SessionId("nobody")
    assert (
        rename_session(peer.store, peer.member, unknown, "x", revision="r", now=1.0)
        is None
    )
    assert peer.store.locate(unknown) is None
    other.store.release(other.tape().grant, now=1.0)
    peer.store.leave(peer.member, now=1.0)
    with pytest.raises(StorageError, match="declared dead"):
        rename_session(peer.store, peer.member, S1, "x", revision="r", now=1.0)
