from __future__ import annotations

import pytest
import trio
from kit.rehearsal import Probe, open_stage, replies
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Hang, RehearsalProvider, Say
from greenroom.engine import (
    SessionHeldError,
    SessionNotFoundError,
    TurnRefusedError,
    WorkspaceError,
    open_engine,
)
from greenroom.protocol import (
    CorruptStoreError,
    MessagesChanged,
    PromptCommand,
    SessionId,
    SessionUpdated,
    StreamCompleted,
    StreamUpdated,
    TextBlock,
    TextPart,
    canonical_json,
)
from greenroom.storage import Piece, open_store

DONE = [Say("done"), Halt()]


def second_engine(stage, script=()):
    return open_engine(
        state=stage.state,
        provider=RehearsalProvider(list(script)),
        program="second",
        builtin=False,
        gc_thresholds=False,
    )


@pytest.mark.slow  # a second engine has real threads
async def test_a_session_has_one_owner_and_the_other_is_told_who(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        await stage.session.prompt("go")
        async with second_engine(stage, replies(DONE)) as other:
            with pytest.raises(SessionHeldError) as held:
                await other.open_session(stage.session.id)
            assert "greenroom (process" in held.value.owner.node
            # Beside it everything else works: looking, and sessions of one's own.
            (row,) = await other.sessions()
            assert row.id == stage.session.id
            assert len(await other.session(row.id).messages()) == 2
            own = await other.create_session(workspace=tmp_path)
            assert (await own.prompt("hi")).text == "done"
            assert (await stage.session.prompt("go")).text == "done"

            await stage.session.close()
            taken = await other.open_session(stage.session.id)
            assert len(await taken.messages()) == 4


@pytest.mark.contract("SES-03")
async def test_fifty_opens_at_once_are_one_actor(tmp_path):
    async with open_stage(tmp_path, []) as stage:
        session_id = stage.session.id
        await stage.session.close()
        found = []

        async def open_it():
            handle = await stage.engine.open_session(session_id)
            loaded = handle._sessions.loaded(handle.id)
            assert loaded is not None
            found.append((loaded.ref, id(loaded.session)))

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(open_it)
        assert len(set(found)) == 1
        actors = [info.path for info in stage.engine.tree() if session_id in info.path]
        assert len(actors) == 1


async def test_an_unknown_session_and_a_bad_workspace_are_typed_errors(tmp_path):
    async with open_stage(tmp_path, []) as stage:
        with pytest.raises(SessionNotFoundError):
            await stage.engine.open_session("nobody")
        with pytest.raises(WorkspaceError, match="not a folder"):
            await stage.engine.create_session(workspace=tmp_path / "nowhere")
        with pytest.raises(TurnRefusedError, match="setting"):
            await stage.engine.create_session(
                workspace=tmp_path, permission_mode="everything"
            )


@pytest.mark.contract("JRN-17")
async def test_a_turn_without_a_provider_ends_in_an_error_that_says_so(tmp_path):
    async with open_engine(
        state=tmp_path / "state", builtin=False, gc_thresholds=False, threads=False
    ) as engine:
        session = await engine.create_session(workspace=tmp_path)
        turn = await session.prompt("go")
    assert (turn.outcome, turn.error) == (
        "error",
        "no provider was given to open_engine",
    )


async def test_state_that_cannot_be_read_starts_nothing(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("go")
    database = next(stage.state.glob("*.db"))
    raw = bytearray(database.read_bytes())
    raw[100:] = b"\xff" * (len(raw) - 100)
    database.write_bytes(raw)
    started = []
    with pytest.raises(CorruptStoreError):
        async with second_engine(stage):
            started.append(True)
    assert started == []


@pytest.mark.contract("JRN-17")
async def test_recovery_is_over_before_any_actor_lives(tmp_path, monkeypatch):
    order = []
    import greenroom.actors.engine._open as engine
    import greenroom.actors.opening as opening

    recover, open_system = opening.recover, engine.open_system

    def noted_recover(*args, **kwargs):
        order.append("recovery begins")
        report = recover(*args, **kwargs)
        order.append("recovery ends")
        return report

    def noted_system(*args, **kwargs):
        order.append("actors")
        return open_system(*args, **kwargs)

    monkeypatch.setattr(opening, "recover", noted_recover)
    monkeypatch.setattr(engine, "open_system", noted_system)
    async with open_stage(tmp_path, []):
        assert order == ["recovery begins", "recovery ends", "actors"]


async def test_a_command_that_nobody_worked_on_is_run_when_the_session_is_opened(
    tmp_path,
):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("first")
        session_id = stage.session.id
    store = open_store(stage.state)
    body = canonical_json(PromptCommand((TextPart("posted by somebody who died"),)))
    store.post(SessionId(session_id), "command", body, now=0.0)
    store.close()
    script = replies(DONE)
    async with open_stage(tmp_path, script, session_id=session_id) as again:
        turn = await again.session.prompt(
            "posted by somebody who died", command_id="command"
        )
        assert turn.text == "done"
        assert len(again.provider.requests) == 1
        assert [m.id for m in await again.session.messages()][2] == "command"


async def test_an_idle_session_is_unloaded_and_loads_again(
    tmp_path, autojump_clock: MockClock
):
    provider = RehearsalProvider(replies(DONE, DONE))
    async with open_engine(
        state=tmp_path / "state",
        provider=provider,
        builtin=False,
        threads=False,
        gc_thresholds=False,
        idle_seconds=60,
    ) as engine:
        session = await engine.create_session(workspace=tmp_path)
        await session.prompt("go")
        await trio.sleep(59)
        assert [i for i in engine.tree() if session.id in i.path]
        await trio.sleep(2)
        assert not [i for i in engine.tree() if session.id in i.path]
        assert (await session.prompt("again")).text == "done"


async def test_settings_change_for_the_next_run_and_are_kept(tmp_path):
    ask = [Call("probe", {"n": 1}), Halt("tool_use")]
    gate = trio.Event()
    probe = Probe(gate=gate)
    script = replies(ask, ask, DONE, ask, DONE)
    async with open_stage(
        tmp_path, script, probe, permission_mode="full_access"
    ) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await probe.reached.wait()
            await stage.session.configure(permission_mode="default", model="other")
            probe.permission = "ask me"
            gate.set()
        # The run that went on kept its snapshot, for the second call too.
        assert len(probe.calls) == 2
        assert {request.model for request in stage.provider.requests} == {"default"}

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            assert stage.provider.requests[-1].model == "other"
            assert len(await stage.session.interactions()) == 1
            await stage.session.cancel()
    again = open_stage(tmp_path, [], session_id=stage.session.id)
    async with again as stage:
        settings = stage.session.settings
        assert settings is not None
        assert (settings.model, settings.permission_mode) == ("other", "default")


async def test_two_prompts_at_once_are_two_turns_one_after_the_other(tmp_path):
    first = [Say("one"), Halt()]
    second = [Say("two"), Halt()]
    async with open_stage(tmp_path, replies(first, second)) as stage:
        texts = []

        async def prompt(text):
            texts.append((await stage.session.prompt(text)).text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prompt, "a")
            nursery.start_soon(prompt, "b")
        assert sorted(texts) == ["one", "two"]
        orders = [(m.order_seq, m.role) for m in await stage.session.messages()]
        assert orders == [(1, "user"), (2, "assistant"), (3, "user"), (4, "assistant")]


async def test_a_prompt_whose_caller_left_before_its_turn_is_taken_back(tmp_path):
    async with open_stage(tmp_path, replies([Hang()], DONE)) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "first")
            await wait_all_tasks_blocked()
            with trio.move_on_after(0):
                await stage.session.prompt("second")
            async with trio.open_nursery() as waiting:
                waiting.start_soon(stage.session.prompt, "third")
                await wait_all_tasks_blocked()
                waiting.cancel_scope.cancel()
            await wait_all_tasks_blocked()
            await stage.session.cancel()
        messages = await stage.session.messages()
        said = [m.blocks[0].text for m in messages if m.role == "user"]  # pyright: ignore[reportAttributeAccessIssue]
        assert said == ["first"]


#### Following


async def collect(feed, until):
    events = []
    async for event in feed:
        events.append(event)
        if isinstance(event, until):
            return events
    return events


async def test_a_watcher_sees_the_text_grow_and_the_turn_end(tmp_path):
    script = replies([Say("hello world", chunk=4), Halt()])
    async with open_stage(tmp_path, script) as stage:
        async with stage.session.follow() as feed:
            assert feed.snapshot is not None
            assert feed.snapshot.messages == ()
            await stage.session.prompt("go")
            events = await collect(feed, StreamCompleted)
        grown = ""
        for event in events:
            if isinstance(event, StreamUpdated) and event.kind == "text":
                assert event.offset == len(grown)
                grown += event.text
        assert grown == "hello world"
        assert isinstance(events[-1], StreamCompleted)


async def test_a_cursor_gives_every_durable_event_once_in_order(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        async with stage.session.follow() as feed:
            await stage.session.prompt("one")
            seen = await collect(feed, StreamCompleted)
        messages = [e for e in seen if isinstance(e, MessagesChanged)]
        middle = messages[1].seq
        await stage.session.configure(title="New title")
        async with stage.session.follow(after=middle) as feed:
            await stage.session.prompt("two")
            first = await collect(feed, StreamCompleted)
            rest = await collect(feed, StreamCompleted)
        durable = [e for e in first + rest if hasattr(e, "seq")]
        seqs = [e.seq for e in durable]
        assert seqs == sorted(seqs)
        assert min(seqs) > middle
        assert [type(e) for e in durable].count(SessionUpdated) == 1
        changed = [e for e in durable if isinstance(e, MessagesChanged)]
        facts = [
            entry.seq
            for entry in stage.tape()
            if entry.fact.name == "message/recorded" and entry.seq > middle
        ]
        assert [e.seq for e in changed] == facts


async def test_a_late_watcher_gets_the_text_so_far_and_no_gap(tmp_path):
    gate = trio.Event()

    async def wait(arguments, operation):
        await operation.dispatch()
        await gate.wait()
        raise RuntimeError("over")

    rounds = replies([Say("so far"), Call("probe"), Halt("tool_use")], DONE)
    async with open_stage(tmp_path, rounds, Probe(body=wait)) as stage:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await wait_all_tasks_blocked()
            async with stage.session.follow() as feed:
                assert feed.snapshot is not None
                message = feed.snapshot.messages[-1]
                assert isinstance(message.blocks[0], TextBlock)
                assert message.blocks[0].text == "so far"
                assert feed.snapshot.state == "generating"
                gate.set()
                events = await collect(feed, StreamCompleted)
        assert events[-1].message.status == "sent"


async def test_a_watcher_that_sleeps_is_closed_and_the_run_goes_on(
    tmp_path, monkeypatch
):
    from greenroom.actors.sessions import SlowWatcherError, _hub

    monkeypatch.setattr(_hub, "FEED_BYTES", 2_000)
    script = replies([Say("x" * 50_000, chunk=100), Halt()])
    async with open_stage(tmp_path, script) as stage:
        async with stage.session.follow() as feed:
            turn = await stage.session.prompt("go")
            assert turn.outcome == "completed"
            with pytest.raises(SlowWatcherError) as slow:
                await collect(feed, StreamCompleted)
        async with stage.session.follow(after=slow.value.seq) as feed:
            assert (await collect(feed, StreamCompleted))[-1].message.status == "sent"


async def test_following_an_unloaded_session_loads_nothing(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("go")
        session_id = stage.session.id
        await stage.session.close()
        async with stage.engine.session(session_id).follow() as feed:
            assert feed.snapshot is not None
            assert len(feed.snapshot.messages) == 2
        with pytest.raises(SessionNotFoundError):
            async with stage.engine.session("nobody").follow():
                pass
        assert not [i for i in stage.engine.tree() if session_id in i.path]


async def test_the_store_is_never_used_after_the_engine_is_closed(tmp_path):
    async with open_stage(tmp_path, []) as stage:
        pass
    with pytest.raises(Exception, match="close"):
        await stage.engine._world.writer.submit(Piece(lambda store: store.heads([])))
