"""What clients of a gateway are told of sessions, at whatever moment they come."""

from __future__ import annotations

import itertools

import pytest
import trio
from kit.gateway import connected, served
from kit.rehearsal import Probe, open_stage, replies
from trio.testing import wait_all_tasks_blocked

from greenroom.actors.providers import Call, Halt, Say
from greenroom.actors.sessions import Told
from greenroom.protocol import events_of
from greenroom.protocol.gateway import ENDED

DONE = [Say("done"), Halt()]


def durable(stage, after=0):
    """What the tape says that clients are told after a cursor."""
    return [
        (Told(event).seq, type(event).__struct_config__.tag)
        for entry in stage.tape()
        if entry.seq > after
        for event in events_of(entry)
    ]


def told(client):
    return [(e["seq"], e["type"]) for e in client.events() if "seq" in e]


async def test_a_client_that_attaches_is_told_everything_after_its_snapshot(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        await stage.session.prompt("one")
        async with served(stage.engine) as gateway, connected(gateway) as client:
            attached = await client.call(
                "_greenroom/session/attach", sessionId=stage.session.id
            )
            assert len(attached["snapshot"]["messages"]) == 2
            await client.call(
                "_greenroom/prompt",
                sessionId=stage.session.id,
                content="two",
                commandId="c",
            )
            await client.until_idle()
            assert told(client) == durable(stage, attached["seq"])


async def test_a_client_with_a_cursor_is_told_what_it_has_missed(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        await stage.session.prompt("one")
        async with served(stage.engine) as gateway, connected(gateway) as client:
            attached = await client.call(
                "_greenroom/session/attach", sessionId=stage.session.id, after=0
            )
            assert "snapshot" not in attached
            await client.until_idle()
            await stage.session.prompt("two")
            await client.until_idle(2)
            assert told(client) == durable(stage)


async def test_the_events_of_a_fact_say_that_more_of_it_follow(tmp_path):
    async with (
        open_stage(tmp_path, replies(DONE)) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        for after in (None, 0):
            cursor = {} if after is None else {"after": after}
            await client.call(
                "_greenroom/session/attach", sessionId=stage.session.id, **cursor
            )
            if after is None:
                await stage.session.prompt("one")
            await client.until_idle(1 if after is None else 2)
        notices = [
            (p["event"]["seq"], p.get("more", False))
            for p in client.told("_greenroom/event")
            if "seq" in p["event"]
        ]
        for (seq, more), (next_seq, _) in itertools.pairwise(notices):
            assert more == (seq == next_seq)
        assert any(more for _, more in notices)


async def test_two_clients_of_a_session_are_told_the_same_bytes(tmp_path):
    async with (
        open_stage(tmp_path, replies([Say("x" * 500, chunk=50), Halt()])) as s,
        served(s.engine) as gateway,
        connected(gateway) as one,
        connected(gateway) as two,
    ):
        for client in (one, two):
            await client.call("_greenroom/session/attach", sessionId=s.session.id)
        await wait_all_tasks_blocked()
        one.received.clear()
        two.received.clear()
        await s.session.prompt("go")
        await one.until_idle()
        await two.until_idle()
        await wait_all_tasks_blocked()
        assert one.received == two.received


async def test_attaching_again_replaces_and_detaching_ends_what_is_told(tmp_path):
    async with (
        open_stage(tmp_path, replies(DONE, DONE)) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        for _ in range(2):
            await client.call("_greenroom/session/attach", sessionId=stage.session.id)
        await stage.session.prompt("one")
        await client.until_idle()
        assert len(told(client)) == len(set(told(client)))
        await client.call("_greenroom/session/detach", sessionId=stage.session.id)
        count = len(client.received)
        await stage.session.prompt("two")
        await wait_all_tasks_blocked()
        assert len(client.received) == count


@pytest.mark.parametrize(
    ("cursor", "code"),
    [
        ({"after": 10_000}, "unknown_cursor"),
        ({"after": 1, "incarnation": "another"}, "unknown_cursor"),
        ({}, None),
    ],
)
async def test_a_cursor_of_another_session_is_refused(tmp_path, cursor, code):
    async with (
        open_stage(tmp_path, replies(DONE)) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        if code is not None:
            assert code == await client.refused(
                "_greenroom/session/attach", sessionId=stage.session.id, **cursor
            )
        assert (
            await client.refused(
                "_greenroom/session/attach", sessionId="nobody", **cursor
            )
            == "session_not_found"
        )


async def test_an_unloaded_session_is_followed_on_when_it_works_again(tmp_path):
    async with (
        open_stage(tmp_path, replies(DONE, DONE)) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        attached = await client.call(
            "_greenroom/session/attach", sessionId=stage.session.id
        )
        await stage.session.prompt("one")
        await stage.session.close()
        await wait_all_tasks_blocked()
        await stage.session.prompt("two")
        await client.until_idle(2)
        assert told(client) == durable(stage, attached["seq"])
        assert client.told(ENDED) == []


async def test_followers_of_a_cleared_session_begin_anew_however_small_their_cursor(
    tmp_path,
):
    async with (
        open_stage(tmp_path, replies(DONE)) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as client,
    ):
        # New, it has a cursor that the tape which a clear begins reaches at once.
        await client.call("_greenroom/session/attach", sessionId=stage.session.id)
        await stage.session.clear()
        with trio.fail_after(10):
            await client.until(lambda: client.told(ENDED))
        (ended,) = client.told(ENDED)
        assert ended == {"sessionId": stage.session.id, "reason": "rewound"}


async def test_followers_of_a_deleted_session_are_told_that_it_is(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        other = await stage.engine.create_session(workspace=tmp_path)
        async with served(stage.engine) as gateway, connected(gateway) as client:
            await client.call("_greenroom/session/attach", sessionId=other.id)
            await client.call("_greenroom/session/delete", sessionId=other.id)
            await client.until(lambda: client.told(ENDED))
            (ended,) = client.told(ENDED)
            assert ended == {"sessionId": other.id, "reason": "deleted"}


async def test_the_first_answer_wins_and_everybody_sees_it(tmp_path):
    script = replies([Call("probe", {}), Halt("tool_use")], DONE)
    async with (
        open_stage(tmp_path, script, Probe(permission="?")) as stage,
        served(stage.engine) as gateway,
        connected(gateway) as one,
        connected(gateway) as two,
    ):
        for client in (one, two):
            await client.call("_greenroom/session/attach", sessionId=stage.session.id)
        await one.call(
            "_greenroom/queue",
            sessionId=stage.session.id,
            content="go",
            commandId="c",
        )
        await wait_all_tasks_blocked()
        (waiting,) = (
            await two.call("_greenroom/interaction/list", sessionId=stage.session.id)
        )["interactions"]
        answer = {
            "sessionId": stage.session.id,
            "interactionId": waiting["block"]["id"],
            "answer": {"type": "grant"},
        }
        await two.call("_greenroom/interaction/answer", **answer)
        late = await one.refused("_greenroom/interaction/answer", **answer)
        assert late == "already_answered"
        for client in (one, two):
            await client.until_idle()
            (settled,) = client.events("interaction/settled")
            assert settled["interactionId"] == waiting["block"]["id"]


async def test_a_client_that_leaves_changes_nothing(tmp_path):
    script = replies([Call("probe", {}), Halt("tool_use")], DONE)
    gate = trio.Event()
    probe = Probe(gate=gate)
    async with (
        open_stage(tmp_path, script, probe, permission_mode="full_access") as stage,
        served(stage.engine) as gateway,
    ):
        prompt = {"sessionId": stage.session.id, "content": "go", "commandId": "c"}
        async with connected(gateway) as client:
            await client.request("_greenroom/prompt", **prompt)
            await wait_all_tasks_blocked()
        async with connected(gateway) as other:
            await other.call("_greenroom/session/attach", sessionId=stage.session.id)
            gate.set()
            await other.until_idle()
            joined = await other.call("_greenroom/prompt", **prompt)
            assert (joined["outcome"], joined["text"]) == ("completed", "done")
    assert len(probe.calls) == 1
