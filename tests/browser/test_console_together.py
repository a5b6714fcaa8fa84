"""Two windows on one session at once: each shows the truth, and says what happened."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from kit.console import Console, OpenConsole, SceneGateway

INBOX = "#inbox .said"


@pytest.fixture
def two(gateway: SceneGateway, open_console: OpenConsole) -> Sequence[Console]:
    """Two pages of one session."""
    one = open_console(gateway.url)
    session = one.new_session(gateway.workspace, "Two pages")
    other = open_console(f"{gateway.url}#/session/{session}", beside=one)
    other.text("#title", "Two pages")
    return one, other


def test_two_pages_see_the_same_and_the_first_answer_closes_the_other_s_card(
    two: Sequence[Console],
) -> None:
    one, other = two
    one.say("question of the ending")
    one.card.wait_for()
    other.card.wait_for()
    assert one.card.inner_text() == other.card.inner_text()
    one.card.locator("input").fill("half-written")

    other.card.get_by_role("button", name=re.compile("happy")).click()

    one.card.wait_for(state="detached")
    one.text("#toasts", "Answered, not here: How should it end?")
    # Who was in the card is not left nowhere.
    one.page.locator("#prompt:focus").wait_for()
    for console in two:
        console.text(".message.assistant", "Then it ends that way.")
        console.text(".message.assistant .action", "answered")
    assert other.page.locator("#toasts").inner_text() == ""


def test_a_question_that_a_stop_closes_is_not_told_as_answered_elsewhere(
    two: Sequence[Console],
) -> None:
    one, other = two
    one.say("question of the ending")
    other.card.wait_for()

    one.page.locator("#stop").click()

    for console in two:
        console.text("#toasts", "Cancelled: How should it end?")


def test_an_input_is_changed_in_one_page_while_the_other_moves_changes_and_deletes(
    two: Sequence[Console],
) -> None:
    one, other = two
    one.say("slow song")
    one.text("#send", "Queue")
    for text in ("first", "second"):
        one.say(text)
        one.text(INBOX, text)
    mine = one.page.locator("#inbox li", has_text="second")
    mine.get_by_label("Edit").press("Enter")
    area = one.page.locator("#inbox textarea")
    area.press_sequentially(" of mine")

    theirs = other.page.locator("#inbox li")
    theirs.filter(has_text="second").get_by_label("Move up").click()
    one.text("#inbox li:last-child .said", "first")
    # Neither what was written is lost, nor who writes it, nor where.
    one.page.keyboard.type("!")
    assert area.input_value() == "second of mine!"

    theirs.filter(has_text="second").get_by_label("Edit").click()
    theirs.locator("textarea").fill("second of theirs")
    theirs.locator("textarea").press("Control+Enter")
    one.text("#inbox .why", "changed elsewhere, to: second of theirs")
    theirs.filter(has_text="second").get_by_label("Delete").click()

    one.text("#toasts", "It was deleted elsewhere while you changed it")
    assert one.page.locator("#prompt").input_value() == "second of mine!"
    assert one.page.locator(INBOX).all_inner_texts() == ["first"]
    one.page.locator("#stop").click()


def test_a_session_that_is_deleted_elsewhere_is_left_and_that_is_said(
    two: Sequence[Console],
) -> None:
    one, other = two
    session = one.page.url.rpartition("/")[2]
    other.page.locator("#tab-settings").click()
    delete = other.page.get_by_role("button", name="Delete the session")
    delete.click()
    delete.click()

    for console in two:
        console.page.locator("#empty").wait_for()
        console.page.locator(f'.session[data-id="{session}"]').wait_for(
            state="detached"
        )
        assert console.page.locator("#composer").is_hidden()
    one.text("#toasts", "The session was deleted.")
    # No panel tells of what is gone.
    other.text("#panel", "Open a session to see its settings.")


def test_a_conversation_is_taken_back_with_its_files_and_the_other_page_sees_it(
    two: Sequence[Console], gateway: SceneGateway
) -> None:
    one, _ = two
    page, keys = one.page, one.page.keyboard
    written = gateway.workspace / "programme.md"
    written.unlink(missing_ok=True)
    one.say("programme for tonight")
    one.card.get_by_role("button", name="Allow").click()
    one.marked("completed")
    assert written.exists()

    asked = page.locator(".message.user").get_by_role("button", name="Rewind here")
    asked.press("Enter")
    one.text("#rewind-what", "2 messages will be taken back")
    one.text("#rewind-list", "programme.md removed")
    assert written.exists()
    keys.press("Escape")
    page.locator("#rewind-dialog").wait_for(state="hidden")
    assert asked.evaluate("each => each === document.activeElement")
    keys.press("Enter")
    page.locator("#rewind-files").check()
    page.locator("#rewind-form").get_by_role("button", name="Rewind").press("Enter")

    one.text("#toasts", "2 messages were taken back.")
    assert not written.exists()
    page.locator("#prompt:focus").wait_for()
    assert page.locator("#prompt").input_value() == "programme for tonight"
    for console in two:
        console.page.locator(".message").first.wait_for(state="detached")
