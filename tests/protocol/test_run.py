from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import (
    RUN_TRANSITIONS,
    AskModel,
    BatchEnded,
    Begun,
    CallsRefused,
    Counters,
    End,
    Fault,
    Faulted,
    InternalError,
    Interrupted,
    ItemId,
    RefuseCalls,
    RoundEnded,
    RunCalls,
    RunMachine,
    RunState,
    Terminal,
)

A, B = ItemId("m.1"), ItemId("m.2")


def asking(**fields):
    machine, command = RunMachine(**fields).after(Begun())
    assert isinstance(command, AskModel)
    return machine


def ending(machine, event) -> Terminal:
    _, command = machine.after(event)
    assert isinstance(command, End)
    return command.terminal


@pytest.mark.parametrize("stop", ["complete", "max_tokens", "max_turn_requests"])
def test_an_ordinary_stop_with_content_completes_with_the_same_reason(stop):
    terminal = ending(asking(), RoundEnded(stop))
    assert terminal == Terminal("completed", stop, "sent")


@pytest.mark.parametrize("stop", ["complete", "max_tokens"])
def test_a_reply_without_any_block_is_an_empty_response(stop):
    terminal = ending(asking(), RoundEnded(stop, has_blocks=False))
    assert (terminal.outcome, terminal.stop_reason) == ("error", "empty_response")
    assert terminal.fault is not None
    assert terminal.fault.code == "no_model_response"


@pytest.mark.parametrize("stop", [None, "error"])
def test_a_missing_or_faulty_stop_is_a_provider_error(stop):
    assert ending(asking(), RoundEnded(stop)).stop_reason == "provider_error"


def test_a_tool_stop_without_a_whole_call_is_a_provider_error():
    terminal = ending(asking(), RoundEnded("tool_use", cut=(A,)))
    assert (terminal.outcome, terminal.stop_reason) == ("error", "provider_error")


def test_a_failure_beats_a_later_ordinary_stop():
    failure = Fault("x", "the text of the failure")
    terminal = ending(asking(), RoundEnded("complete", failure=failure))
    assert (terminal.stop_reason, terminal.fault) == ("provider_error", failure)


def test_an_overflow_is_its_own_reason():
    event = RoundEnded(None, failure=Fault("x", "too long"), overflow=True)
    assert ending(asking(), event).stop_reason == "context_window"


STOPS = ["complete", "max_tokens", "tool_use", "max_turn_requests", "error", None]


@given(st.sampled_from(STOPS), st.booleans(), st.booleans(), st.booleans())
def test_calls_run_only_for_a_tool_stop_with_a_whole_call(stop, whole, cut, failed):
    event = RoundEnded(
        stop,
        completed=(A,) if whole else (),
        cut=(B,) if cut else (),
        failure=Fault("x", "x") if failed else None,
    )
    _, command = asking().after(event)
    expected = stop == "tool_use" and whole and not failed
    assert isinstance(command, RunCalls) == expected


def test_calls_of_a_reply_cut_by_the_limit_are_refused_once_then_end_the_run():
    event = RoundEnded("max_tokens", completed=(A,), cut=(B,))
    machine, command = asking().after(event)
    assert isinstance(command, RefuseCalls)
    assert command.calls == (A, B)
    machine, command = machine.after(CallsRefused())
    assert command == AskModel(Counters(round=2))

    machine, command = machine.after(event)
    assert isinstance(command, RefuseCalls)
    assert ending(machine, CallsRefused()) == Terminal(
        "completed", "max_tokens", "sent"
    )


@pytest.mark.parametrize(("done", "runs"), [(126, True), (127, False)])
def test_the_batch_that_crosses_the_call_limit_runs_none_of_its_calls(done, runs):
    machine, command = asking(tool_calls=done).after(
        RoundEnded("tool_use", completed=(A, B))
    )
    assert isinstance(command, RunCalls) == runs
    if not runs:
        terminal = ending(machine, CallsRefused())
        assert terminal == Terminal("completed", "max_tool_calls", "sent")


@pytest.mark.parametrize(
    ("limit", "rounds"), [(1, 1), (2, 2), (0, None), (-1, None), (None, None)]
)
def test_the_round_limit_is_checked_before_the_next_round(limit, rounds):
    machine, asked = asking(max_rounds=limit), 1
    while asked < 10:
        machine, command = machine.after(RoundEnded("tool_use", completed=(A,)))
        assert isinstance(command, RunCalls)
        machine, command = machine.after(BatchEnded(started=1))
        if isinstance(command, End):
            assert command.terminal.stop_reason == "max_turns"
            assert str(limit) in command.terminal.fault.text  # pyright: ignore[reportOptionalMemberAccess]
            break
        asked += 1
    assert asked == (rounds or 10)


def test_a_fatal_error_comes_before_a_pause_and_a_pause_before_the_limit():
    working, _ = asking(max_rounds=1).after(RoundEnded("tool_use", completed=(A,)))
    fatal = Fault("tool_error", "does not fit")

    both = ending(working, BatchEnded(started=1, paused=True, fatal=fatal))
    assert both.stop_reason == "tool_error"
    paused = ending(working, BatchEnded(started=1, paused=True))
    assert paused == Terminal("paused", "interaction", "pending")
    assert ending(working, BatchEnded(started=1)).stop_reason == "max_turns"


@pytest.mark.parametrize(
    ("cause", "outcome"),
    [
        ("user_stop", "aborted"),
        ("shutdown", "aborted"),
        ("parent", "aborted"),
        ("superseded", "aborted"),
        ("deadline", "error"),
        ("process_exit", "error"),
        ("pending_input", "completed"),
    ],
)
def test_an_interruption_ends_the_run_with_the_word_of_its_cause(cause, outcome):
    terminal = ending(asking(), Interrupted(cause))
    assert (terminal.outcome, terminal.stop_reason) == (outcome, cause)


def test_a_fault_without_another_event_ends_with_its_code():
    fault = Fault("pre_stream_error", "no such model")
    assert ending(RunMachine(), Faulted(fault)).stop_reason == "pre_stream_error"
    assert ending(RunMachine(), Faulted(fault, True)).stop_reason == "context_window"


EVENTS = [
    Begun(),
    RoundEnded("complete"),
    RoundEnded("tool_use", completed=(A,)),
    RoundEnded("max_tokens", cut=(A,)),
    BatchEnded(started=1),
    BatchEnded(started=1, paused=True),
    CallsRefused(),
    Interrupted("user_stop"),
    Faulted(Fault("pre_stream_error", "x")),
]


@given(st.lists(st.sampled_from(EVENTS), max_size=12))
def test_every_sequence_of_events_follows_the_table_and_ends_at_most_once(events):
    machine, ends = RunMachine(max_rounds=3), 0
    for event in events:
        targets = RUN_TRANSITIONS[machine.state].get(type(event))
        if targets is None:
            with pytest.raises(InternalError, match=type(event).__name__):
                machine.after(event)
            continue
        machine, command = machine.after(event)
        assert machine.state in targets
        ends += isinstance(command, End)
        assert isinstance(command, End) == (machine.state is RunState.ENDED)
    assert ends <= 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"fatal": Fault("tool_error", "x")}, "tool_error"),
        ({"paused": True}, "interaction"),
        ({"stuck": True}, "no_progress"),
        ({}, "pending_input"),
    ],
)
def test_waiting_input_ends_a_settled_batch_that_nothing_else_ends(fields, reason):
    machine, _ = asking().after(RoundEnded("tool_use", completed=(A,)))
    terminal = ending(machine, BatchEnded(started=1, steered=True, **fields))
    assert terminal.stop_reason == reason
    if not fields:
        assert terminal == Terminal("completed", "pending_input", "sent")
