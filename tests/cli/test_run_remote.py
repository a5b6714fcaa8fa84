"""``greenroom run --remote``: the turn is in the gateway's engine, whatever happens."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
import trio
from kit.cut_stream import Cut
from kit.desk import Screen
from kit.gateway import served
from kit.rehearsal import Probe, open_stage, replies
from kit.remote import client_of, of_gateway

from greenroom.cli._conversation import Conversation
from greenroom.cli._exit import ExitCode
from greenroom.cli._prompts import Asker, Lines, UnansweredError
from greenroom.cli._remote import RemoteSession
from greenroom.cli._terminal import Terminal
from greenroom.cli._view import View
from greenroom.testing import Call, Fail, Halt, Hang, Say

DONE = [Say("done"), Halt()]
HANGS = [Say("I begin"), Hang()]
CALLS = [Call("probe", {"n": 1}), Halt("tool_use")]


def view_of(stage: Any, screen: Screen, *, json: bool = False) -> View:
    terminal = Terminal(screen.write)
    # Nobody types: standard input is no terminal under test.
    asker = Asker(Lines(0), terminal.ask)
    return View(stage.session.id, terminal, asker, json)


async def test_an_interrupt_stops_the_turn_at_the_gateway(tmp_path):
    screen, ended = Screen(), []
    async with (
        open_stage(tmp_path, replies(HANGS)) as stage,
        served(stage.engine) as gateway,
        client_of(of_gateway(gateway)) as client,
    ):
        session = RemoteSession(client, stage.session.id)
        talk = Conversation(session, view_of(stage, screen), yes=False)

        async def hold() -> None:
            ended.append(await talk.hold("go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold)
            await screen.until("I begin")
            signal.raise_signal(signal.SIGINT)
        last = (await stage.session.messages())[-1]
    assert ended == [ExitCode.INTERRUPTED]
    assert last.metadata.run_stop_reason == "user_stop"
    assert "stopped: user_stop" in screen.text


@pytest.mark.parametrize(
    ("rounds", "status", "outcome"),
    [
        ([CALLS, DONE], ExitCode.OK, "completed"),
        ([[Fail("no", code="bad_key", status=401)]], ExitCode.RUN_FAILED, "error"),
    ],
)
async def test_a_connection_that_is_lost_in_the_midst_changes_nothing(
    tmp_path, autojump_clock, capsys, rounds, status, outcome
):
    cuts = [0]

    def wrap(stream: trio.abc.Stream) -> trio.abc.Stream:
        cuts[0] += 1
        return Cut(stream, 2_500 if cuts[0] < 3 else 1 << 30)

    async with (
        open_stage(
            tmp_path, replies(*rounds), Probe(), permission_mode="full_access"
        ) as stage,
        served(stage.engine) as gateway,
        client_of(of_gateway(gateway), wrap=wrap) as client,
    ):
        session = RemoteSession(client, stage.session.id)
        view = view_of(stage, Screen(), json=True)
        assert await Conversation(session, view, yes=False).hold("go") == status
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (told[-1]["type"], told[-1]["outcome"]) == ("turn", outcome)
    # Durable events come once each, in their order.
    durable = [(e["seq"], e["type"]) for e in told if "seq" in e]
    assert len(durable) == len(set(durable))
    assert [seq for seq, _ in durable] == sorted(seq for seq, _ in durable)
    assert cuts[0] > 1


async def test_a_permission_that_nobody_can_give_ends_it_and_stays_open(tmp_path):
    probe = Probe(permission="write it")
    async with (
        open_stage(tmp_path, replies(CALLS, DONE), probe) as stage,
        served(stage.engine) as gateway,
        client_of(of_gateway(gateway)) as client,
    ):
        session = RemoteSession(client, stage.session.id)
        view = view_of(stage, Screen())
        with pytest.raises(UnansweredError) as unanswered:
            await Conversation(session, view, yes=False).hold("go")
        assert unanswered.value.exit_code == ExitCode.UNANSWERED
        assert len(await stage.session.interactions()) == 1
    assert probe.calls == []
