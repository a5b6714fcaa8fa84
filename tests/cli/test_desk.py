"""``greenroom attach`` at its gateway: each command, each of its bad inputs."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
import trio
from kit.desk import Seat, seated
from kit.rehearsal import Probe, Stage, open_stage, replies

from greenroom.cli._exit import ExitCode, exit_code_for
from greenroom.cli._faults import known_errors
from greenroom.cli._prompts import UnansweredError
from greenroom.cli._typed import TYPED
from greenroom.protocol import TextPart, UserMessage
from greenroom.testing import Call, Halt, Hang, Say

DONE = [Say("done"), Halt()]
HANGS = [Say("I begin"), Hang()]
CALLS = [Call("probe", {"n": 1}), Halt("tool_use")]
SUMMARY = [Say("## Goal\nA summary of it."), Halt()]


async def running(seat: Seat) -> None:
    """Say something whose turn goes on until it is stopped."""
    await seat.told("go", "I begin")


async def waiting(seat: Seat, *texts: str) -> None:
    """Say what has to wait for the turn that runs."""
    for text in texts:
        await seat.told(text, "in the inbox: waiting")


def said(stage: Stage) -> list[str]:
    """What the user said last in each request."""
    found: list[str] = []
    for request in stage.provider.requests:
        users = [m for m in request.messages if isinstance(m, UserMessage)]
        texts = (p.text for p in users[-1].parts if isinstance(p, TextPart))
        found.append(" ".join(texts))
    return found


def is_running(stage: Stage) -> bool:
    status = stage.engine.status(stage.session.id)
    return status is not None and status.state == "generating"


#### What is said


async def test_a_line_is_said_and_its_answer_shown(tmp_path):
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage, seated(stage) as me:
        await me.told("hello", "done\n", "done · 1 round")
        await me.told("//etc is a folder", "done · 1 round")
        me.end_input()
        await me.left.wait()
    assert me.status == ExitCode.OK
    # Whoever typed it has it before their eyes.
    assert "hello" not in me.screen.text
    assert me.screen.text.endswith(f"session {stage.session.id}\n")
    assert said(stage) == ["hello", "/etc is a folder"]


async def test_many_pasted_lines_wait_in_their_order_and_too_many_are_refused(tmp_path):
    async with open_stage(tmp_path, replies(HANGS)) as stage, seated(stage) as me:
        await running(me)
        place = len(me.screen.text)
        me.type(*(f"line {number}" for number in range(6)))
        await me.screen.until(*["in the inbox: waiting"] * 5, after=place)
        await me.screen.until("(", after=place)
        rows = await stage.session.inputs()
        await me.told("/inbox", "5. waiting: queue")
    texts = [getattr(part, "text", "") for row in rows for part in row.parts or ()]
    # The one that runs is a row of the inbox until it has ended.
    assert texts == ["go", *(f"line {number}" for number in range(5))]


async def test_a_session_that_was_used_shows_its_past_and_what_waits(tmp_path):
    async with open_stage(tmp_path, replies(DONE, HANGS)) as stage:
        await stage.session.prompt("earlier")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "now")
            await trio.testing.wait_all_tasks_blocked()
            await stage.session.queue("later")
            async with seated(stage) as me:
                await me.screen.until("user: earlier", "done", "user: now", "I begin")
                await me.screen.until("(in the inbox: 1; /inbox lists it)")
            await stage.session.cancel()


#### Commands


async def test_help_tells_every_command(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage, seated(stage) as me:
        await me.told("/help", "Ctrl-C stops the turn")
    assert all(f"/{name}" in me.screen.text for name in TYPED)


async def test_quit_leaves_and_what_runs_goes_on(tmp_path):
    async with open_stage(tmp_path, replies(HANGS)) as stage:
        async with seated(stage) as me:
            await running(me)
            me.type("/quit")
            await me.left.wait()
        assert me.status == ExitCode.OK
        assert is_running(stage)


async def test_cancel_stops_the_turn(tmp_path):
    async with open_stage(tmp_path, replies(HANGS)) as stage, seated(stage) as me:
        await running(me)
        await me.told("/cancel", "stopped: user_stop")
        # With nothing that runs there is nothing to do.
        await me.told("/cancel", "")
        await me.told("/inbox", "nothing waits")


async def test_steer_speaks_to_the_turn_that_runs(tmp_path):
    gate = trio.Event()
    probe = Probe(gate=gate)
    script = replies(CALLS, DONE)
    async with open_stage(tmp_path, script, probe) as stage, seated(stage) as me:
        await me.told("go", "> probe")
        await me.told("/steer  the other one ", "")
        await me.told("/inbox", ": steer", "the other one")
        gate.set()
        await me.screen.until("done: pending_input", "done · ")
    assert said(stage)[1] == "the other one"


async def test_compact_puts_a_summary_in_the_place_of_what_was_said(tmp_path):
    script = replies(DONE, DONE, DONE, SUMMARY, DONE)
    async with open_stage(tmp_path, script) as stage:
        for text in ("one", "two", "three"):
            await stage.session.prompt(f"{text} " * 400)
        async with seated(stage) as me:
            await me.told("/compact the door", "compacted: about", "nothing is lost")
        assert "the door" in str(stage.provider.requests[3].messages)


async def test_compact_of_nothing_says_so(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage, seated(stage) as me:
        await me.told("/compact", "nothing was changed")


async def test_fork_names_the_new_session(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage:
        await stage.session.prompt("one")
        async with seated(stage) as me:
            await me.told("/fork", "forked: attach to session ")
            await me.screen.until("\n", after=me.screen.text.index("forked: "))
        rows = await stage.engine.sessions()
        (fork,) = [row for row in rows if row.id != stage.session.id]
        assert f"attach to session {fork.id}\n" in me.screen.text


async def test_the_inbox_is_listed_changed_and_let_go(tmp_path):
    script = replies(HANGS, *[DONE] * 3)
    async with open_stage(tmp_path, script) as stage, seated(stage) as me:
        await running(me)
        await waiting(me, "first", "second", "third")
        await me.told("/inbox", "1. in_flight", "first", "second", "4. ", "third")
        await me.told("/delete 2", "")
        await me.told("/cancel", "stopped: user_stop")
        await me.told("/inbox", "1. held: queue", "second", "2. held: queue", "third")
        await me.told("/release", "done · ", "done · ")
        assert not await stage.session.inputs()
    assert said(stage) == ["go", "second", "third"]


async def test_promote_speaks_it_to_the_turn_that_runs(tmp_path):
    gate = trio.Event()
    probe = Probe(gate=gate)
    script = replies(CALLS, DONE, DONE)
    async with open_stage(tmp_path, script, probe) as stage, seated(stage) as me:
        await me.told("go", "> probe")
        await waiting(me, "first", "second")
        await me.told("/promote 3", "")
        await me.told("/inbox", ": steer", "second")
        gate.set()
        await me.screen.until("done: pending_input", "done · ", "done · ")
    assert said(stage)[1:] == ["second", "first"]


async def test_a_number_means_what_was_listed_though_the_inbox_has_moved_on(tmp_path):
    script = replies(HANGS, DONE)
    async with open_stage(tmp_path, script) as stage, seated(stage) as me:
        await running(me)
        await waiting(me, "first", "second")
        await me.told("/inbox", "3. waiting")
        _, first, second = await stage.session.inputs()
        await stage.session.delete_input(first.id)
        await me.told("/delete 2", first.id)
        assert [row.id for row in await stage.session.inputs()][1:] == [second.id]
        place = len(me.screen.text)
        await me.told("/delete 3", "")
        await me.told("/inbox", "1. in_flight", "\n")
        assert "2. " not in me.screen.text[place:]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("/", "there is no /; /help tells what there is"),
        ("/nothing", "there is no /nothing"),
        ("/\x1b[2Jnothing", "there is no /␛[2Jnothing"),
        ("/steer", "write it as /steer TEXT"),
        ("/answer", "write it as /answer TEXT"),
        ("/answer yes", "nothing waits for an answer"),
        ("/promote", "write it as /promote N"),
        ("/promote 1", "nothing waits: /inbox lists what waits now"),
        ("/promote 0c75a650", "name it by its number: /inbox"),
        ("/delete", "write it as /delete N"),
        ("/delete -1", "name it by its number: /inbox"),
        ("/delete 9999999999", "name it by its number: /inbox"),
        ("/release now", "/release takes nothing behind it"),
        ("/cancel that", "/cancel takes nothing behind it"),
        ("/inbox 1", "/inbox takes nothing behind it"),
        ("/fork m1", "/fork takes nothing behind it"),
        ("/quit now", "/quit takes nothing behind it"),
    ],
)
async def test_what_can_not_be_done_is_said_and_is_not_the_end(tmp_path, line, why):
    async with open_stage(tmp_path, replies(DONE)) as stage, seated(stage) as me:
        await me.screen.until("session ")
        await me.told(line, why)
        await me.told("go", "done · ")
    assert "\x1b" not in me.screen.text


async def test_a_number_that_was_not_listed_changes_nothing(tmp_path):
    async with open_stage(tmp_path, replies(HANGS)) as stage, seated(stage) as me:
        await running(me)
        await waiting(me, "first")
        await me.told("/delete 3", "choose 1 to 2: /inbox lists what waits now")
        await me.told("/promote 0", "choose 1 to 2")
        assert len(await stage.session.inputs()) == 2


@pytest.mark.parametrize("line", ["go", "/cancel", "/steer x", "/fork", "/release"])
async def test_who_may_only_read_is_told_so_and_goes_on_looking(tmp_path, line):
    scopes: Any = ("read",)
    async with (
        open_stage(tmp_path, replies(DONE)) as stage,
        seated(stage, scopes=scopes) as me,
    ):
        await me.screen.until("session ")
        await me.told(line, "needs the scope 'write' (use a token with")
        await stage.session.prompt("of somebody else")
        await me.screen.until("user: of somebody else", "done · ")


#### What waits for an answer


async def test_a_question_is_asked_and_the_next_line_answers_it(tmp_path):
    probe = Probe(permission="write it")
    script = replies(CALLS, DONE)
    async with open_stage(tmp_path, script, probe) as stage, seated(stage) as me:
        await me.told("go", "? ", "write it", "allow this? y, n, or why not: ")
        await me.told("y", "granted", "done · ")
    assert probe.calls == [{"n": 1}]


async def test_a_line_typed_before_the_question_does_not_answer_it(tmp_path):
    gate = trio.Event()
    probe, gated = Probe(permission="write it"), Probe("gate", gate=gate)
    first = [Call("gate", {}), Halt("tool_use")]
    script = replies(first, CALLS, DONE)
    async with open_stage(tmp_path, script, probe, gated) as stage, seated(stage) as me:
        await me.told("go", "> gate")
        await waiting(me, "y")
        gate.set()
        await me.screen.until("allow this?")
        assert probe.calls == []
        await me.told("n", "denied")


async def test_an_answer_that_is_none_asks_again(tmp_path):
    probe = Probe(permission="write it")
    script = replies(CALLS, DONE)
    async with open_stage(tmp_path, script, probe) as stage, seated(stage) as me:
        await me.told("go", "allow this?")
        await me.told("/answer", "write it as /answer TEXT")
        await me.told("/answer not today", "denied: not today", "done · ")
    assert probe.calls == []


async def test_a_question_that_somebody_else_answered_is_asked_no_more(tmp_path):
    probe = Probe(permission="write it")
    script = replies(CALLS, DONE)
    async with open_stage(tmp_path, script, probe) as stage, seated(stage) as me:
        await me.told("go", "allow this?")
        async with seated(stage) as other:
            await other.screen.until("allow this?")
            await other.told("y", "done · ")
        await me.screen.until("granted", "done · ")
        await me.told("/answer y", "nothing waits for an answer")


async def test_yes_grants_permissions_and_asks_nobody(tmp_path):
    probe = Probe(permission="write it")
    script = replies(CALLS, DONE)
    async with (
        open_stage(tmp_path, script, probe) as stage,
        seated(stage, yes=True) as me,
    ):
        await me.told("go", "done · ")
    assert "allow this?" not in me.screen.text
    assert probe.calls == [{"n": 1}]


#### Signals


async def test_the_first_interrupt_stops_the_turn_and_the_next_leaves(tmp_path):
    async with open_stage(tmp_path, replies(HANGS)) as stage, seated(stage) as me:
        await running(me)
        signal.raise_signal(signal.SIGINT)
        await me.screen.until("Ctrl-C again leaves", "stopped: user_stop")
        signal.raise_signal(signal.SIGINT)
        await me.left.wait()
    assert me.status == ExitCode.INTERRUPTED


async def test_each_turn_may_be_stopped_by_its_first_interrupt(tmp_path):
    async with (
        open_stage(tmp_path, replies(HANGS, HANGS)) as stage,
        seated(stage) as me,
    ):
        for _ in range(2):
            await running(me)
            place = len(me.screen.text)
            signal.raise_signal(signal.SIGINT)
            await me.screen.until("stopped: user_stop", after=place)
        assert not me.left.is_set()


async def test_an_interrupt_with_nothing_to_stop_says_how_to_leave(tmp_path):
    async with open_stage(tmp_path, replies(DONE)) as stage, seated(stage) as me:
        await me.screen.until("session ")
        signal.raise_signal(signal.SIGINT)
        await me.screen.until("nothing runs; Ctrl-C again leaves")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_to_end_leaves_at_once_and_what_runs_goes_on(tmp_path, number):
    async with open_stage(tmp_path, replies(HANGS)) as stage:
        async with seated(stage) as me:
            await running(me)
            signal.raise_signal(number)
            await me.left.wait()
        assert me.status == ExitCode.INTERRUPTED
        assert is_running(stage)


#### Scripts


async def test_the_lines_of_a_script_have_their_turns_one_after_the_other(tmp_path):
    async with (
        open_stage(tmp_path, replies(DONE, DONE)) as stage,
        seated(stage, is_terminal=False) as me,
    ):
        me.type("one", "two")
        me.end_input()
        await me.left.wait()
    assert me.status == ExitCode.OK
    assert said(stage) == ["one", "two"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("/nonsense", "there is no /nonsense"),
        ("/answer y", "nothing waits for an answer"),
        ("/delete 1", "nothing waits"),
        ("x" * 70_000, "a line is longer than 65,536 bytes"),
    ],
)
async def test_a_line_of_a_script_that_can_not_be_done_makes_it_fail(
    tmp_path, line, why
):
    async with (
        open_stage(tmp_path, replies(DONE)) as stage,
        seated(stage, is_terminal=False) as me,
    ):
        me.type("first")
        await me.screen.until("done ·")
        async with trio.open_nursery() as nursery:
            # More than a pipe holds.
            nursery.start_soon(trio.to_thread.run_sync, me.type, line)
            await me.screen.until(why)
        me.end_input()
        await me.left.wait()
    assert me.status == ExitCode.RUN_FAILED


async def test_a_script_whose_question_nobody_answers_ends(tmp_path):
    probe = Probe(permission="write it")
    with pytest.RaisesGroup(UnansweredError, flatten_subgroups=True) as ended:
        async with (
            open_stage(tmp_path, replies(CALLS, DONE), probe) as stage,
            seated(stage, is_terminal=False) as me,
        ):
            me.type("go")
            me.end_input()
            await me.left.wait()
    (error,) = known_errors(ended.value)
    assert exit_code_for(error) == ExitCode.UNANSWERED


async def test_lines_of_json_tell_what_was_done(tmp_path, capsys):
    async with open_stage(tmp_path, replies(DONE, SUMMARY, DONE)) as stage:
        await stage.session.prompt("\x1b]52;c;eA==\x07\x9b2J")
        async with seated(stage, is_terminal=False, json=True) as me:
            me.type("/inbox", "/fork", "/compact", "go")
            me.end_input()
            await me.left.wait()
    shown = capsys.readouterr().out
    assert not {"\x1b", "\x9b", "\x07"} & set(shown)
    told = [json.loads(line) for line in shown.splitlines()]
    types = [line["type"] for line in told]
    assert types[0] == "attached"
    assert {"inbox", "forked"} <= set(types)
    assert types.index("compaction") < types.index("turn")
    assert me.status == ExitCode.OK


#### What comes from outside


async def test_nothing_of_the_session_is_obeyed_by_the_terminal(tmp_path):
    attack = "\x1b]8;;http://e/\x07x\x1b]52;c;eA==\x07\x9b2J\x90q\u202e\u2066\u200f"
    probe = Probe(permission=f"may I {attack}", result=f"of {attack}")
    calls = [Say(attack), Call("probe", {"n": attack}), Halt("tool_use")]
    async with open_stage(
        tmp_path, replies(calls, [Say(attack), Halt()]), probe, title=f"title {attack}"
    ) as stage:
        async with seated(stage) as me:
            await me.told("go", "allow this?")
            await me.told(f"no {attack}", "done · ")
        async with seated(stage) as again:
            await again.screen.until("user: go", "done · ")
    seen = me.screen.text + again.screen.text
    assert not {"\x1b", "\x07", "\x9b", "\x90", "\u202e", "\u2066", "\u200f"} & set(
        seen
    )
