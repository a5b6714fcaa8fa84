from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import attrs
import msgspec
import pytest
from hypothesis import given, strategies as st

from greenroom.cli._harmless import harmless
from greenroom.cli._terminal import Terminal, is_capable, wants_color
from greenroom.protocol import (
    ActionBlock,
    Block,
    Diff,
    ErrorBlock,
    ImageBlock,
    ItemId,
    MessageId,
    MessageMetadata,
    MessageRecord,
    MessagesChanged,
    Plan,
    PlanEntry,
    PlanUpdated,
    QuestionOption,
    ReasoningBlock,
    RunId,
    SessionId,
    SessionSettings,
    SessionUpdated,
    StatusChanged,
    StreamCompleted,
    StreamFailed,
    StreamUpdated,
    TextBlock,
    ToolCallBlock,
    WaitReason,
)

SESSION = SessionId("s")
RUN = RunId("r")
ATTACK = "\x1b]0;owned\x07\x1b[2J\r\x9b1m"


@attrs.define(eq=False)
class Screen:
    """A terminal and what was written to it."""

    colors: bool = False
    live: bool = False
    written: list[str] = attrs.field(factory=list)
    terminal: Terminal = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.terminal = Terminal(
            self.written.append, colors=self.colors, live=self.live
        )

    def show(self, *events: Any) -> str:
        for event in events:
            self.terminal.show(event)
        return self.text

    @property
    def text(self) -> str:
        return "".join(self.written)


def grown(
    text: str,
    offset: int = 0,
    item: str = "t1",
    kind: Literal["text", "reasoning", "tool_output", "tool_call"] = "text",
    message: str = "m",
) -> StreamUpdated:
    return StreamUpdated(
        session_id=SESSION,
        run_id=RUN,
        message_id=MessageId(message),
        item_id=ItemId(item),
        kind=kind,
        offset=offset,
        text=text,
    )


def whole(block: Block) -> StreamUpdated:
    return msgspec.structs.replace(grown("", item=block.id), block=block)


def record(
    blocks: Sequence[Block] = (),
    role: Literal["user", "assistant"] = "assistant",
    **metadata: Any,
) -> MessageRecord:
    return MessageRecord(
        id=MessageId("m"),
        order_seq=1,
        role=role,
        status="sent",
        blocks=tuple(blocks),
        metadata=MessageMetadata(run_id=RUN, **metadata),
        created_at=0.0,
        updated_at=0.0,
    )


def changed(*blocks: Block) -> MessagesChanged:
    return MessagesChanged(session_id=SESSION, seq=1, message=record(blocks))


def completed(*blocks: Block) -> StreamCompleted:
    message = record(blocks, run_outcome="completed", run_stop_reason="complete")
    return StreamCompleted(session_id=SESSION, seq=2, message=message)


def waiting(
    reason: WaitReason | None, version: int = 1, remaining: float | None = None
) -> StatusChanged:
    return StatusChanged(
        session_id=SESSION,
        version=version,
        state="generating",
        waiting_for=reason,
        remaining=remaining,
    )


def text(words: str, item: str = "t1") -> TextBlock:
    return TextBlock(id=ItemId(item), text=words)


def call(**changes: Any) -> ToolCallBlock:
    fields: dict[str, Any] = {
        "id": ItemId("c1"),
        "call_id": "call_1",
        "name": "write",
        "arguments": "{}",
    }
    return ToolCallBlock(**(fields | changes))


def action(**changes: Any) -> ActionBlock:
    fields: dict[str, Any] = {
        "id": ItemId("a1"),
        "action": "tool_call_permission",
        "origin": "pre-check-permission",
        "tool_block_id": ItemId("c1"),
        "title": "write a.py",
    }
    return ActionBlock(**(fields | changes))


#### Text


def test_text_is_shown_as_it_grows() -> None:
    screen = Screen()

    assert screen.show(grown("Hel")) == "Hel"
    assert screen.show(grown("lo", 3)) == "Hello"


def test_what_was_shown_is_not_shown_again() -> None:
    screen = Screen()
    screen.show(grown("Hel"), grown("Hello", 0), grown("lo", 3))

    assert screen.show(changed(text("Hello")), completed(text("Hello!"))) == (
        "Hello!\ndone\n"
    )


def test_what_was_missed_shows_as_a_gap() -> None:
    assert Screen().show(grown("world", 6)) == "…world"


def test_another_item_begins_on_a_line_of_its_own() -> None:
    screen = Screen()
    screen.show(grown("thinking", item="r1", kind="reasoning"), grown("word"))

    assert screen.text == "thinking\nword"


def test_a_new_message_forgets_the_items_of_the_last() -> None:
    screen = Screen()
    screen.show(grown("one"), grown("two", message="m2"))

    assert screen.text == "one\ntwo"


@given(st.text(st.characters(codec="utf-8")), st.data())
def test_however_text_is_cut_it_is_shown_once_and_whole(
    words: str, data: st.DataObject
) -> None:
    screen = Screen()
    at = 0
    while at < len(words):
        start = data.draw(st.integers(0, at))
        end = data.draw(st.integers(at + 1, len(words)))
        screen.show(grown(words[start:end], start))
        at = end
    screen.show(changed(text(words)))

    plain = words.replace("\r", "")
    assert screen.text.replace("␍", "") == harmless(plain)


def test_what_the_user_said_is_not_repeated() -> None:
    event = MessagesChanged(
        session_id=SESSION, seq=1, message=record([text("hi")], role="user")
    )
    assert Screen().show(event) == ""


def test_arguments_that_stream_in_are_not_text() -> None:
    assert Screen().show(grown('{"path":', kind="tool_call")) == ""


#### Tools


def test_a_call_is_announced_and_its_end_told() -> None:
    screen = Screen()
    screen.show(
        whole(call(title="write a.py")),
        whole(call(title="write a.py", status="loading")),
        grown("writing\n", item="out", kind="tool_output"),
        whole(call(title="write a.py", status="success", response="done")),
        changed(call(title="write a.py", status="success", response="done")),
    )

    assert screen.text == "> write: write a.py\nwriting\n  ok: write a.py\n"


def test_a_call_that_failed_says_why() -> None:
    screen = Screen()
    screen.show(whole(call(status="error", response="no\nsuch file")))

    assert screen.text == "> write\n  failed: write: no such file\n"


def test_a_paused_call_has_no_result_to_tell() -> None:
    assert Screen().show(whole(call(status="success", response=""))) == "> write\n"


def test_the_diff_of_a_call_is_shown_once() -> None:
    diffs = (Diff(path="a.py", old_text="a\n", new_text="b\n"),)
    screen = Screen()
    screen.show(whole(call(diffs=diffs)), changed(call(diffs=diffs)))

    assert screen.text == ("> write\n  change a.py\n  @@ -1 +1 @@\n  -a\n  +b\n")


@pytest.mark.parametrize(
    ("block", "line"),
    [
        (action(), "? write a.py\n"),
        (action(status="granted"), "  granted\n"),
        (action(status="denied", answer="too risky"), "  denied: too risky\n"),
        (
            action(
                action="question_request",
                status="success",
                answer="red",
                options=(QuestionOption(label="red"),),
            ),
            "  answered: red\n",
        ),
        (ErrorBlock(id=ItemId("e"), code="c", text="it broke"), "! it broke\n"),
        (
            ImageBlock(id=ItemId("i"), media_type="image/png", data="AAAA"),
            "[image/png, 3 bytes]\n",
        ),
        (ReasoningBlock(id=ItemId("r"), text="hm\n"), "hm\n"),
    ],
)
def test_every_block_is_shown_once(block: Block, line: str) -> None:
    screen = Screen()

    assert screen.show(whole(block)) == line
    assert screen.show(whole(block), changed(block)) == line


def test_a_question_that_somebody_else_shows_is_not_shown_twice() -> None:
    written: list[str] = []
    terminal = Terminal(written.append, shows_questions=False)
    terminal.show(whole(action()))
    terminal.show(whole(action(status="granted")))

    assert written == ["  granted", "\n"]


#### The session


def test_the_end_of_a_turn_is_told_once() -> None:
    screen = Screen()

    assert screen.show(grown("Hi"), completed(text("Hi")), completed()) == "Hi\ndone\n"


def test_a_failure_says_why() -> None:
    message = record(run_outcome="error", run_stop_reason="error", error_text="no key")
    event = StreamFailed(session_id=SESSION, seq=1, message=message)

    assert Screen().show(event) == "failed: no key\n"


def test_a_failure_of_the_provider_is_followed_by_how_to_go_on() -> None:
    message = record(
        run_outcome="error",
        run_stop_reason="provider_error",
        error_text="the provider answered 401: no",
    )
    event = StreamFailed(session_id=SESSION, seq=1, message=message)

    out = Screen().show(event, event)
    assert out.startswith("failed: the provider answered 401: no\nlook at the key")
    assert out.count("\n") == 2


def test_a_failure_that_was_told_is_only_named_at_the_end() -> None:
    told = ErrorBlock(id=ItemId("e1"), code="auth", text="no key", round=1)
    message = record(
        [told], run_outcome="error", error_code="auth", error_text="no key"
    )
    event = StreamFailed(session_id=SESSION, seq=1, message=message)

    assert Screen().show(event) == "! no key\nfailed: auth\n"


def test_a_question_begins_on_a_line_of_its_own_and_no_status_stands_in_it() -> None:
    screen = Screen(live=True)
    screen.show(waiting("permission", 1))
    screen.terminal.finish()
    screen.terminal.ask("? write\n  allow this? ")
    screen.show(waiting("permission", 2))

    assert screen.text.endswith("\x1b[K? write\n  allow this? ")


def test_after_an_answer_the_next_line_follows_at_once() -> None:
    screen = Screen()
    screen.terminal.ask("  allow this? ")
    screen.terminal.answered()

    assert screen.show(changed(action(status="granted"))) == "  allow this?   granted\n"


def test_what_comes_instead_of_an_answer_has_a_line_of_its_own() -> None:
    screen = Screen()
    screen.terminal.ask("  allow this? ")

    assert screen.show(changed(action(status="error"))) == (
        "  allow this? \n  not answered\n"
    )


def test_without_a_terminal_only_long_waits_are_told() -> None:
    screen = Screen()
    screen.show(waiting("first_byte"), waiting("rate_gate", remaining=3), waiting(None))

    assert screen.text == "waiting 3 s for the provider: rate limited\n"


def test_on_a_terminal_a_wait_passes() -> None:
    screen = Screen(live=True)
    screen.show(waiting("first_byte"), grown("Hi"))

    assert screen.text == "waiting for the model's first word\r\x1b[KHi"


@pytest.mark.parametrize(("columns", "shown"), [(12, "waiting fo…"), (2, ""), (0, "")])
def test_in_a_narrow_terminal_a_wait_stays_on_one_line(
    columns: int, shown: str
) -> None:
    screen = Screen(live=True)
    write = screen.written.append
    screen.terminal = Terminal(write, live=True, columns=lambda: columns)
    assert screen.show(waiting("tool")) == shown
    # What was not written is not taken back.
    screen.terminal.finish()
    assert screen.text == shown + ("\r\x1b[K" if shown else "")


def test_a_note_that_quotes_is_harmless() -> None:
    screen = Screen()
    screen.terminal.note("it said \x1b[2J\x9b")
    assert screen.text == "it said ␛[2J\ufffd\n"


def test_a_wait_does_not_break_into_a_line() -> None:
    assert Screen(live=True).show(grown("Hi"), waiting("stream")) == "Hi"


def test_an_older_status_is_not_shown_after_a_newer_one() -> None:
    screen = Screen()
    screen.show(waiting(None, version=5), waiting("backoff", version=4))

    assert screen.text == ""


def test_a_plan_is_shown_whole_and_only_when_it_is_newer() -> None:
    entries = (
        PlanEntry(content="read", status="completed"),
        PlanEntry(content="think", status="in_progress"),
        PlanEntry(content="write"),
    )
    screen = Screen()
    for revision in (2, 2, 1):
        plan = Plan(revision=revision, entries=entries)
        screen.show(PlanUpdated(session_id=SESSION, seq=1, plan=plan))

    assert screen.text == "plan:\n  [x] read\n  [>] think\n  [ ] write\n"


def test_changed_settings_are_not_output() -> None:
    settings = SessionSettings(
        agent_id="a", title="t", workspace="/", provider="p", model="m"
    )
    event = SessionUpdated(session_id=SESSION, seq=1, settings=settings)

    assert Screen().show(event) == ""


def test_finish_leaves_an_empty_line_and_no_status() -> None:
    screen = Screen(live=True)
    screen.show(grown("Hi"))
    screen.terminal.finish()
    screen.show(waiting("tool"))
    screen.terminal.finish()

    assert screen.text == "Hi\nwaiting for a tool\r\x1b[K"


#### Colour and safety


def test_colour_is_used_only_where_it_is_wanted() -> None:
    diffs = (Diff(path="a.py", old_text="a\n", new_text="b\n"),)
    colored, plain = Screen(colors=True), Screen()
    for screen in (colored, plain):
        screen.show(whole(call(diffs=diffs)), whole(call(status="error")))

    assert "\x1b[32m  +b\x1b[0m" in colored.text
    assert "\x1b[31m  -a\x1b[0m" in colored.text
    assert re.sub(r"\x1b\[\d+m", "", colored.text) == plain.text
    assert "\x1b" not in plain.text


def attacks() -> list[Any]:
    bad = {"title": ATTACK, "name": ATTACK}
    diff = Diff(path=ATTACK, old_text=ATTACK, new_text=ATTACK * 2)
    plan = Plan(revision=1, entries=(PlanEntry(content=ATTACK),))
    failed = record(run_outcome="error", run_stop_reason=ATTACK, error_text=ATTACK)
    return [
        grown(ATTACK),
        grown(ATTACK, item="r", kind="reasoning"),
        grown(ATTACK, item="o", kind="tool_output"),
        whole(call(**bad, diffs=(diff,))),
        whole(call(**bad, status="success", response=ATTACK)),
        whole(call(**bad, status="error", response=ATTACK, note=ATTACK)),
        whole(action(title=ATTACK)),
        whole(action(title=ATTACK, status="denied", answer=ATTACK)),
        whole(ErrorBlock(id=ItemId("e"), code=ATTACK, text=ATTACK)),
        whole(ImageBlock(id=ItemId("i"), media_type=ATTACK, data="")),
        PlanUpdated(session_id=SESSION, seq=1, plan=plan),
        StreamFailed(session_id=SESSION, seq=1, message=failed),
    ]


@pytest.mark.parametrize("number", range(len(attacks())))
def test_nothing_from_outside_reaches_the_terminal_as_control(number: int) -> None:
    shown = Screen().show(attacks()[number])

    assert "owned" in shown
    assert harmless(shown) == shown


@pytest.mark.parametrize(
    ("mode", "is_terminal", "environ", "wanted"),
    [
        ("auto", True, {"TERM": "xterm"}, True),
        ("auto", False, {"TERM": "xterm"}, False),
        ("auto", True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        ("auto", True, {"TERM": "xterm", "NO_COLOR": ""}, True),
        ("auto", True, {"TERM": "dumb"}, False),
        ("auto", True, {}, False),
        ("always", False, {"NO_COLOR": "1"}, True),
        ("never", True, {"TERM": "xterm"}, False),
    ],
)
def test_colour_follows_the_setting_then_the_terminal(
    mode: str, is_terminal: bool, environ: dict[str, str], wanted: bool
) -> None:
    assert wants_color(mode, is_terminal=is_terminal, environ=environ) is wanted


def test_escape_sequences_need_a_terminal_that_knows_them() -> None:
    assert is_capable(is_terminal=True, environ={"TERM": "xterm"})
    assert not is_capable(is_terminal=True, environ={"TERM": "dumb"})
    assert not is_capable(is_terminal=False, environ={"TERM": "xterm"})
