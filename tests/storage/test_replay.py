"""Replay slices: a request by hashes, and no replay of what was changed since."""

from __future__ import annotations

import msgspec
import pytest
from kit.rehearsal import open_stage, replies
from kit.stores import open_world

from greenroom.actors.providers import Halt, Say
from greenroom.protocol import Fact, FactKind, SourceType
from greenroom.storage import (
    Grant,
    ReplayError,
    SqliteStore,
    Tape,
    open_store,
    replay_slice,
    verify_slice,
)


async def asked(tmp_path):
    """Return a state with one request, its session and its reply."""
    async with open_stage(tmp_path, replies([Say("hi"), Halt()])) as stage:
        turn = await stage.session.prompt("go")
        return stage.state, stage.session.id, turn.message


@pytest.mark.contract("TAP-16")
async def test_a_request_without_traces_is_bound_by_its_manifest(tmp_path):
    state, scope, message = await asked(tmp_path)
    store = open_store(state)
    store.forget_traces(1e12)
    cut = replay_slice(store, scope, message.id, 1)
    assert cut.mode == "manifest_only"
    assert len(cut.slice_id) == len("replay_") + 16
    assert set(cut.slice_id.removeprefix("replay_")) <= set("0123456789abcdef")
    assert replay_slice(store, scope, message.id, 1) == cut
    verify_slice(store, cut)
    assert msgspec.json.decode(msgspec.json.encode(cut), type=type(cut)) == cut
    for forged in (
        msgspec.structs.replace(cut, manifest_hash="0" * 64),
        msgspec.structs.replace(cut, prompt_hash="0" * 64),
        msgspec.structs.replace(cut, slice_id="replay_0123456789abcdef"),
    ):
        with pytest.raises(ReplayError):
            verify_slice(store, forged)
    with pytest.raises(ReplayError, match="no manifest of request 2"):
        replay_slice(store, scope, message.id, 2)
    store.close()


@pytest.mark.contract("TAP-16")
async def test_a_trace_that_was_tampered_with_is_an_error(tmp_path):
    state, scope, message = await asked(tmp_path)
    store = open_store(state)
    assert isinstance(store, SqliteStore)
    member = store.join("node", "", 60.0, now=0.0)
    grant = store.acquire(member, scope, now=0.0)
    assert isinstance(grant, Grant)
    # The first attempt has one already.
    (first,) = store.traces(scope, message.id)
    second = msgspec.structs.replace(first, physical_attempt=2)
    assert store.keep_trace(grant, second) is None
    cut = replay_slice(store, scope, message.id, 1)
    assert (cut.mode, len(cut.traces)) == ("trace_bound", 2)
    verify_slice(store, cut)
    store.connection.execute(
        "UPDATE attempt_trace SET payload = '{\"body\":2}' WHERE attempt = 2"
    )
    with pytest.raises(ReplayError, match=r"attempt 2 of replay_.* was changed"):
        verify_slice(store, cut)
    store.forget_traces(1e12)
    with pytest.raises(ReplayError, match="not kept any more"):
        verify_slice(store, cut)
    store.leave(member, now=1.0)
    store.close()


@pytest.mark.contract("TAP-16")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("payload", ['{"viewId":1', None])
async def test_a_manifest_that_is_not_sound_is_no_slice(tmp_path, kind, payload):
    state, scope, message = await asked(tmp_path)
    store = open_store(state)
    (entry, *_) = store.request_entries(scope, message.id, 1)
    store.close()
    with open_world(kind) as world:
        peer = world.join()
        tape: Tape = peer.tape()
        old = msgspec.json.decode(entry.fact.payload)
        if payload is None:
            old["manifest"]["latestEntryId"] += 1
        else:
            old["viewId"] = 5
        forged = Fact(
            kind=FactKind.EVENT,
            name="view/assembled",
            source_type=SourceType.RUNTIME_EVENT,
            source_id="run",
            payload=msgspec.json.encode(old).decode(),
        )
        peer.store.run_group([tape.append_piece([forged], now=1.0)])
        expected = "not the one of its hash" if payload is None else "can't be read"
        with pytest.raises(ReplayError, match=expected):
            replay_slice(peer.store, tape.scope, message.id, 1)
