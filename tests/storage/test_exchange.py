"""A session is written out whole and read back in, as far as a file is whole."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from kit.stores import (
    MESSAGE,
    OTHER_RUN,
    S1,
    S2,
    SETTINGS,
    Peer,
    World,
    dispatch,
    event,
    message,
    open_world,
    started,
    terminal,
    write,
)

from greenroom.protocol import (
    ActionBlock,
    DiskFullError,
    ItemId,
    SessionId,
    TextBlock,
    ToolCallBlock,
)
from greenroom.storage import (
    MAX_LINE_BYTES,
    Imported,
    MemoryStore,
    archived_fact,
    builtin_row,
    export_session,
    import_sessions,
    message_fact,
    retraction_fact,
    salvage,
    settings_fact,
    verify,
)

HERE = msgspec.structs.replace(SETTINGS, workspace="/here", title="None given")
CALL = ToolCallBlock(
    id=ItemId("c"), call_id="c", name="rm", arguments="{}", status="loading"
)
ASKED = ActionBlock(
    id=ItemId("a"),
    action="tool_call_permission",
    origin="pre-check-permission",
    tool_block_id=ItemId("c"),
    title="May it?",
)


def filled(peer: Peer, scope: SessionId = S1) -> None:
    tape = peer.tape(scope)
    run = started().run_id if scope == S1 else OTHER_RUN
    write(peer.store, tape.commit_piece(started(run), now=1.0))
    write(peer.store, tape.commit_piece(dispatch(run=run), now=1.0))
    facts = [
        message_fact(message("hello")),
        message_fact(message("gone", name="m2", order=2)),
        event(1, "noted"),
        archived_fact(archived=True, revision="1"),
    ]
    write(peer.store, tape.append_piece(facts, now=1.0))
    write(peer.store, tape.commit_piece(terminal(run), now=1.0))
    write(peer.store, tape.append_piece([retraction_fact(MESSAGE)], now=1.0))
    more = message("bye", name="m3", order=3, role="assistant")
    write(peer.store, tape.append_piece([message_fact(more)], now=1.0))
    peer.store.release(tape.grant, now=1.0)


def exported(peer: Peer, *scopes: SessionId) -> list[bytes]:
    return [
        msgspec.json.encode(line) + b"\n"
        for scope in scopes or (S1,)
        for line in export_session(peer.store, scope)
    ]


def imported(peer: Peer, lines: Iterable[bytes], prefix: str = "new") -> Imported:
    numbers = itertools.count()
    return import_sessions(
        peer.store,
        peer.member,
        io.BytesIO(b"".join(lines)),
        HERE,
        new_id=lambda: f"{prefix}-{next(numbers)}",
        now=9.0,
    )


def problems(done: Imported) -> list[tuple[int, str]]:
    return [(problem.line, problem.text) for problem in done.problems]


def test_what_was_written_out_is_a_new_session_of_the_same_content(
    world: World,
) -> None:
    peer = world.join()
    filled(peer)
    lines = exported(peer)
    # Everything is in the file, the journal too; its head says how much.
    assert len(lines) == peer.store.page(S1, 0).head + 1
    assert sum(b'"execution/' in line for line in lines) == 3
    done = imported(peer, lines)
    assert problems(done) == []
    (session,) = done.sessions
    assert (session.source_id, session.title) == (S1, SETTINGS.title)
    assert (session.entries, session.left_out) == (5, 5)
    assert peer.store.messages(session.id) == peer.store.messages(S1)
    row = peer.store.session(session.id)
    assert row is not None
    assert row.settings == msgspec.structs.replace(SETTINGS, workspace="/here")
    assert row.archived_at is None
    assert peer.store.open_runs(session.id) == []
    assert peer.store.locate(session.id) is None
    names = [e.fact.name for e in peer.store.page(session.id, 0).entries]
    assert names[0] == "session/start"
    assert not [name for name in names if name.startswith("execution/")]
    first, second = (peer.store.page(s, 0, 1).entries[0] for s in (S1, session.id))
    assert first.fact.meta != second.fact.meta
    while peer.store.index_pending():
        pass
    assert verify(peer.store) == []
    assert {h.session_id for h in peer.store.search_messages("bye")} == {S1, session.id}


def test_a_file_can_be_read_in_twice_and_into_another_store(world: World) -> None:
    peer = world.join()
    filled(peer)
    lines = exported(peer)
    one, two = imported(peer, lines, "one"), imported(peer, lines, "two")
    assert one.sessions[0].id != two.sessions[0].id
    store = MemoryStore.create()
    other = Peer(store, store.join("n", "", 60.0, now=0.0))
    (session,) = imported(other, lines).sessions
    assert store.messages(session.id) == peer.store.messages(S1)


def test_a_session_of_an_agent_that_is_not_here_gets_one_that_is(world: World) -> None:
    peer = world.join()
    filled(peer)
    of_nobody = msgspec.structs.replace(SETTINGS, agent_id="nobody")
    fact = settings_fact(of_nobody, revision="2")
    write(peer.store, peer.tape(S1).append_piece([fact], now=1.0))
    peer.store.release(peer.tape(S1).grant, now=1.0)
    lines = exported(peer)
    (made,) = imported(peer, lines).sessions
    row = peer.store.session(made.id)
    assert row is not None
    assert row.settings.agent_id == HERE.agent_id
    peer.store.put_agent(msgspec.structs.replace(builtin_row(0.0), id="nobody"))
    (again,) = imported(peer, lines, "again").sessions
    row = peer.store.session(again.id)
    assert row is not None
    assert row.settings.agent_id == "nobody"


def test_several_sessions_in_a_file_are_several(world: World) -> None:
    peer = world.join()
    filled(peer, S1)
    filled(peer, S2)
    done = imported(peer, exported(peer, S1, S2))
    assert [session.source_id for session in done.sessions] == [S1, S2]
    assert problems(done) == []
    mixed = exported(peer, S1)[1:4] + exported(peer, S2)[1:4] + exported(peer, S1)[4:6]
    done = imported(peer, mixed, "mixed")
    assert [session.source_id for session in done.sessions] == [S1, S2]
    assert [text for _, text in problems(done)] == [
        "is of a session that had ended before"
    ] * 2


def test_what_was_taken_out_of_damaged_state_is_read_in(tmp_path: Any) -> None:
    with open_world("sqlite") as world:
        peer = world.join()
        filled(peer)
        folder = peer.store.folder  # type: ignore[attr-defined]
        lines = [msgspec.json.encode(entry) + b"\n" for entry in salvage(folder)]
        (session,) = imported(peer, lines).sessions
        assert peer.store.messages(session.id) == peer.store.messages(S1)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda lines: [b"\xef\xbb\xbf", *lines], []),
        (lambda lines: [b"\x00" * 5_000, *lines, b"\x00" * 5_000], []),
        (lambda lines: [b"\n\r\n", *lines, b"\n\n"], []),
        (lambda lines: [*lines[:-1], lines[-1][:-20]], ["is no whole entry", "last"]),
        (lambda lines: [*lines[:-1], lines[-1][:-1]], []),
        (lambda lines: [*lines[:5], *lines[6:]], ["5 to 5 are missing"]),
        (lambda lines: lines[:-2], ["is the last; entries 10 to 11 are missing"]),
        (lambda lines: [*lines, lines[-1]], ["repeats entry 11"]),
        (lambda lines: [*lines[:3], b"garbage\n", *lines[3:]], ["is no whole entry"]),
        (lambda lines: [*lines[:3], b"[" * 90_000, b"\n", *lines[3:]], ["no whole"]),
        (lambda lines: [*lines[:3], b"\xff\xfe\n", *lines[3:]], ["is no whole entry"]),
        (
            lambda lines: [*lines[:3], b"x" * (MAX_LINE_BYTES + 9), b"\n", *lines[3:]],
            ["has more than 8388608 bytes"],
        ),
    ],
)
def test_of_a_damaged_file_all_that_is_whole_is_read(
    world: World, damage: Any, expected: list[str]
) -> None:
    peer = world.join()
    filled(peer)
    lines = exported(peer)
    done = imported(peer, damage(lines))
    assert len(done.problems) == len(expected), done.problems
    for problem, text in zip(done.problems, expected, strict=True):
        assert text in problem.text
    (session,) = done.sessions
    assert peer.store.message(session.id, "m2") == peer.store.message(S1, "m2")
    assert [p for p in verify(peer.store) if p.session_id == session.id] == []


def test_a_problem_is_told_with_its_line(world: World) -> None:
    peer = world.join()
    filled(peer)
    lines = exported(peer)
    done = imported(peer, [*lines[:3], b"\n", b"garbage\n", *lines[3:]])
    assert [line for line, _ in problems(done)] == [5]


def test_of_many_problems_the_first_are_told_and_all_are_counted(
    world: World,
) -> None:
    peer = world.join()
    done = imported(peer, [b"{}\n"] * 1_000)
    assert (len(done.problems), done.problem_count, done.sessions) == (100, 1_000, ())
    assert peer.store.scopes() == []


HOSTILE: list[tuple[str, Any]] = [
    ("can't be kept", {"name": "UPPER"}),
    ("can't be kept", {"sourceId": "", "source_id": ""}),
    ("can't be kept", {"payload": '{"a":"' + "x" * (1 << 20) + '"}'}),
    ("is no whole entry", {"kind": "unknown"}),
    ("can't be kept", {"name": "message/recorded", "kind": "message"}),
    ("can't be kept", {"meta": "nonsense"}),
]


@pytest.mark.parametrize(("text", "changes"), HOSTILE)
def test_a_hostile_fact_is_told_and_the_rest_is_read(
    world: World, text: str, changes: dict[str, Any]
) -> None:
    peer = world.join()
    filled(peer)
    lines = exported(peer)
    at = next(n for n, line in enumerate(lines) if b"note/taken" in line)
    entry = msgspec.json.decode(lines[at])
    entry["fact"] |= changes
    lines[at] = msgspec.json.encode(entry) + b"\n"
    done = imported(peer, lines)
    assert any(text in problem for _, problem in problems(done))
    (session,) = done.sessions
    assert peer.store.messages(session.id) == peer.store.messages(S1)


def test_two_messages_in_one_place_are_one_and_a_problem(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    write(peer.store, tape.append_piece([message_fact(message("one"))], now=1.0))
    lines = exported(peer)
    twin = msgspec.json.decode(lines[-1])
    twin["seq"] = 4
    twin["fact"]["payload"] = twin["fact"]["payload"].replace('"m1"', '"m9"')
    twin["fact"]["provenance_key"] = "other"
    done = imported(peer, [*lines, msgspec.json.encode(twin)])
    assert ["another message's" in text for _, text in problems(done)] == [True]
    assert [m.id for m in peer.store.messages(done.sessions[0].id)] == ["m1"]


def test_a_file_grants_nothing_and_asks_nothing(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    lines = exported(peer)
    powers = msgspec.structs.replace(
        SETTINGS, permission_mode="full_access", workspace="/"
    )
    settings = msgspec.json.decode(lines[-1])
    settings["fact"]["payload"] = msgspec.json.encode(powers).decode()
    lines[-1] = msgspec.json.encode(settings) + b"\n"
    waiting = message("", CALL, ASKED, role="assistant", status="pending")
    user = message("", ASKED, name="m2", order=2, status="pending")
    link = msgspec.structs.replace(event(1), name="subagent/tape_linked")
    facts = [message_fact(waiting), message_fact(user), link]
    write(peer.store, tape.append_piece(facts, now=1.0))
    done = imported(peer, [*lines, *exported(peer)[len(lines) :]])
    assert problems(done) == []
    (session,) = done.sessions
    row = peer.store.session(session.id)
    assert row is not None
    assert (row.settings.permission_mode, row.settings.workspace) == (
        "default",
        "/here",
    )
    assert not row.has_open_interaction
    assert peer.store.pending_messages(session.id) == []
    names = {e.fact.name for e in peer.store.page(session.id, 0).entries}
    assert "subagent/tape_linked" not in names
    answer = peer.store.message(session.id, MESSAGE)
    assert answer is not None
    assert answer.status == "error"
    call = next(b for b in answer.blocks if isinstance(b, ToolCallBlock))
    assert (call.status, call.response is None) == ("error", False)


def test_a_store_that_fails_leaves_nothing_of_the_session() -> None:
    store = MemoryStore.create()
    peer = Peer(store, store.join("n", "", 60.0, now=0.0))
    filled(peer)
    lines = exported(peer)
    failing = _Failing(store)
    other = Peer(failing, peer.member)  # type: ignore[arg-type]
    with pytest.raises(DiskFullError):
        imported(other, lines)
    assert store.scopes() == [S1]


class _Failing:
    """A store that is full after the second append."""

    def __init__(self, store: MemoryStore) -> None:
        self.store, self.appends = store, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def append(self, *args: Any, **kwargs: Any) -> Any:
        self.appends += 1
        if self.appends > 1:
            raise DiskFullError("the disk is full")
        return self.store.append(*args, **kwargs)


def test_a_session_without_settings_gets_those_of_the_reader(world: World) -> None:
    peer = world.join()
    filled(peer)
    lines = [line for line in exported(peer) if b"session/configured" not in line]
    (session,) = imported(peer, lines).sessions
    assert session.title == "None given"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_damage_leaves_a_store_that_is_whole(data: st.DataObject) -> None:
    store = MemoryStore.create()
    peer = Peer(store, store.join("n", "", 60.0, now=0.0))
    filled(peer)
    text = bytearray(b"".join(exported(peer)))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=9))
        if not text:
            break
    done = imported(peer, [bytes(text)])
    assert done.problem_count >= len(done.problems)
    assert verify(store) == []
    for session in done.sessions:
        assert store.session(session.id) is not None
        assert store.locate(session.id) is None


def test_blocks_of_an_unfinished_answer_are_kept(world: World) -> None:
    peer = world.join()
    tape = peer.tape()
    said = TextBlock(id=ItemId("t"), text="so far", status="loading")
    record = message("", said, role="assistant", status="pending")
    write(peer.store, tape.append_piece([message_fact(record)], now=1.0))
    (session,) = imported(peer, exported(peer)).sessions
    (answer,) = peer.store.messages(session.id)
    assert answer.blocks[0] == msgspec.structs.replace(said, status="error")
    assert answer.metadata.run_outcome == "error"
