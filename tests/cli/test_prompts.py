from __future__ import annotations

import os
import select
import tty
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from greenroom.cli._exit import CliError, ExitCode
from greenroom.cli._prompts import (
    MAX_PROMPT_BYTES,
    Asker,
    Lines,
    UnansweredError,
    answer_hint,
    parse_answer,
    question_lines,
    read_prompt,
)
from greenroom.protocol import (
    ActionBlock,
    Answer,
    Deny,
    Grant,
    ItemId,
    Other,
    QuestionOption,
    Reply,
)


def permission(**changes: Any) -> ActionBlock:
    fields: dict[str, Any] = {
        "id": ItemId("a1"),
        "action": "tool_call_permission",
        "origin": "pre-check-permission",
        "tool_block_id": ItemId("c1"),
        "title": "run a command: ls",
    }
    return ActionBlock(**(fields | changes))


def question(*labels: str, **changes: Any) -> ActionBlock:
    fields: dict[str, Any] = {
        "action": "question_request",
        "origin": "question",
        "title": "which colour?",
        "options": tuple(QuestionOption(label=label) for label in labels),
    }
    return permission(**(fields | changes))


#### What was typed


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("y", Grant()),
        ("YES", Grant()),
        ("n", Deny()),
        ("No", Deny()),
        ("yess", Deny(reason="yess")),
        ("ok", Deny(reason="ok")),
        ("use git instead", Deny(reason="use git instead")),
        ("", "please answer"),
    ],
)
def test_only_a_clear_yes_grants(line: str, answer: Answer | str) -> None:
    assert parse_answer(permission(), line) == answer


@pytest.mark.parametrize(
    ("block", "line", "answer"),
    [
        (question("red", "blue"), "2", Reply(text="blue")),
        (question("red", "blue"), "green", Reply(text="green")),
        (question("red", "blue"), "o", Other()),
        (question("red", "blue"), "1,2", "please choose one"),
        (question("red", "blue"), "3", "please choose 1 to 2"),
        (question("red", "blue"), "0", "please choose 1 to 2"),
        (question("red", "blue"), "²", Reply(text="²")),
        (question("red", "blue", multiple=True), "2, 1", Reply(text="blue, red")),
        (question("red", "blue", multiple=True), "2,2", Reply(text="blue")),
        (question("red", "blue", multiple=True), "1,3", "please choose 1 to 2"),
        (question("red", "blue", custom=False), "green", "please choose by number"),
        (question("red", "blue", custom=False), "1,", "please choose by number"),
        (question(), "anything", Reply(text="anything")),
        (question(), "7", Reply(text="7")),
        (question("red"), "", "please answer"),
    ],
)
def test_a_question_is_answered_by_number_or_in_words(
    block: ActionBlock, line: str, answer: Answer | str
) -> None:
    assert parse_answer(block, line) == answer


def test_the_question_shows_what_is_to_be_decided() -> None:
    block = question("red", detail="\x1b[2Jtwo\nlines")

    assert question_lines(block) == [
        "? which colour?",
        "  ␛[2Jtwo",
        "  lines",
        "  1. red",
    ]


def test_a_question_without_a_title_begins_with_its_words() -> None:
    block = question("tea", title="", detail="What to drink?")

    assert question_lines(block) == ["? What to drink?", "  1. tea"]


def test_what_the_title_says_in_full_is_not_said_again() -> None:
    assert question_lines(permission(detail="ls")) == ["? run a command: ls"]
    assert question_lines(permission(detail="ls -a")) == [
        "? run a command: ls",
        "  ls -a",
    ]


def test_a_long_detail_says_how_much_is_not_shown() -> None:
    lines = question_lines(permission(detail="line\n" * 100))

    assert len(lines) == 1 + 60 + 1
    assert lines[-1] == "  … 40 more lines"


@pytest.mark.parametrize(
    ("block", "hint"),
    [
        (permission(), "allow this? y, n, or why not"),
        (question("a"), "a number, or your own words"),
        (question("a", multiple=True), "numbers, as in 1,3, or your own words"),
        (question("a", custom=False), "a number (o: write"),
        (question(), "your own words (o: write"),
    ],
)
def test_the_hint_says_how_to_answer(block: ActionBlock, hint: str) -> None:
    assert hint in answer_hint(block)


#### On a terminal


@attrs.define(eq=False)
class Desk:
    """A terminal with somebody at it."""

    keyboard: int
    terminal: int
    written: list[str]
    asker: Asker

    async def type(self, text: bytes) -> None:
        while text:
            await trio.lowlevel.wait_writable(self.keyboard)
            text = text[os.write(self.keyboard, text) :]

    def wait_until_typed(self) -> None:
        """What is written to a pty arrives a little later."""
        assert select.select([self.terminal], [], [], 10)[0]


@pytest.fixture
def desk() -> Iterator[Desk]:
    keyboard, terminal = os.openpty()
    os.set_blocking(keyboard, False)
    written: list[str] = []
    try:
        yield Desk(keyboard, terminal, written, Asker(Lines(terminal), written.append))
    finally:
        os.close(keyboard)
        os.close(terminal)


async def answer_of(desk: Desk, block: ActionBlock, *typed: bytes) -> Answer | None:
    answers: list[Answer] = []

    async def ask() -> None:
        answers.append(await desk.asker.ask(block))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        for text in typed:
            await wait_all_tasks_blocked()
            await desk.type(text)
    return answers[0]


async def test_a_permission_is_granted_on_a_terminal(desk: Desk) -> None:
    assert await answer_of(desk, permission(), b"y\n") == Grant()
    assert desk.written[0] == "? run a command: ls\n"


async def test_an_answer_that_answers_nothing_is_asked_for_again(desk: Desk) -> None:
    assert await answer_of(desk, permission(), b"\n", b"n\n") == Deny()
    assert "  please answer\n" in desk.written


async def test_what_was_typed_before_the_question_does_not_answer_it(
    desk: Desk,
) -> None:
    await desk.type(b"y\n")
    desk.wait_until_typed()

    assert await answer_of(desk, permission(), b"n\n") == Deny()


async def test_what_was_typed_after_an_answer_does_not_answer_the_next(
    desk: Desk,
) -> None:
    assert await answer_of(desk, permission(), b"y\ny\n") == Grant()
    assert await answer_of(desk, permission(), b"n\n") == Deny()


# A terminal that doesn't wait for the end of a line hands out both at once.
async def test_what_was_read_along_with_an_answer_does_not_answer_the_next(
    desk: Desk,
) -> None:
    tty.setraw(desk.terminal)

    assert await answer_of(desk, permission(), b"y\ny\n") == Grant()
    assert await answer_of(desk, permission(), b"n\n") == Deny()


async def test_a_line_without_end_is_given_up(desk: Desk) -> None:
    tty.setraw(desk.terminal)

    with pytest.RaisesGroup(
        pytest.RaisesExc(UnansweredError, match="a line is longer")
    ):
        await answer_of(desk, permission(), *[b"x" * 4_000] * 18)


async def test_bytes_that_are_no_text_are_replaced(desk: Desk) -> None:
    assert await answer_of(desk, question(), b"\xff\xe9!\n") == Reply(
        text="\ufffd\ufffd!"
    )


async def test_the_end_of_the_input_leaves_the_question_open(desk: Desk) -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(UnansweredError, match="the input has ended")
    ):
        await answer_of(desk, permission(), b"\x04")


async def test_asking_can_be_cancelled(desk: Desk) -> None:
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.asker.ask, permission())
            await wait_all_tasks_blocked()
            scope.cancel()

    assert scope.cancelled_caught
    assert await answer_of(desk, permission(), b"y\n") == Grant()


async def test_without_a_terminal_nothing_is_asked() -> None:
    reading, writing = os.pipe()
    written: list[str] = []
    try:
        with pytest.raises(UnansweredError, match="not a terminal") as caught:
            await Asker(Lines(reading), written.append).ask(permission())
    finally:
        os.close(reading)
        os.close(writing)

    assert caught.value.exit_code == ExitCode.UNANSWERED
    assert caught.value.hint is not None
    assert "--yes" in caught.value.hint
    assert written == []


#### The prompt


def no_input(_: int) -> bytes:
    raise AssertionError("read the input")


def test_a_prompt_is_the_argument() -> None:
    assert read_prompt("do it", no_input) == "do it"
    assert read_prompt("caf\udce9", no_input) == "caf\ufffd"


def test_a_dash_reads_the_prompt() -> None:
    assert read_prompt("-", lambda _: "tu es là\n".encode()) == "tu es là\n"


@pytest.mark.parametrize("raw", [b"", b" \n\t"])
def test_an_empty_prompt_is_refused(raw: bytes) -> None:
    with pytest.raises(CliError, match="the prompt is empty"):
        read_prompt("-", lambda _: raw)
    with pytest.raises(CliError, match="the prompt is empty"):
        read_prompt(raw.decode(), no_input)


def test_a_prompt_is_bounded_and_never_read_further() -> None:
    asked: list[int] = []

    def read(limit: int) -> bytes:
        asked.append(limit)
        return b"x" * limit

    with pytest.raises(CliError, match="longer than 1048576 bytes") as caught:
        read_prompt("-", read)

    assert caught.value.exit_code == ExitCode.USAGE
    assert asked == [MAX_PROMPT_BYTES + 1]
