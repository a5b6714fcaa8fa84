"""What somebody does with the console: attach, prompt, approve, cancel, come back."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

from kit.console import OpenConsole, SceneGateway


def test_a_prompt_is_answered_and_a_page_that_comes_later_shows_the_same(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    first = open_console(gateway.url)
    first.new_session(gateway.workspace, "A prompt")

    first.say("hello to the house")

    first.marked("completed")
    first.text(".message.user", "hello to the house")
    first.text(".message.assistant", "You said: hello to the house")
    first.text(".message.assistant footer", "2,300 in, 140 out")
    second = open_console(gateway.url)
    second.page.get_by_role("button", name="A prompt").first.click()
    second.text(".message.assistant", "You said: hello to the house")
    assert second.page.locator("#messages").inner_text() == (
        first.page.locator("#messages").inner_text()
    )


def test_a_change_is_shown_and_waits_until_it_is_allowed(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console(gateway.url)
    console.new_session(gateway.workspace, "A permission")
    written = gateway.workspace / "programme.md"
    written.unlink(missing_ok=True)

    console.say("programme for tonight")

    console.card.wait_for()
    console.text("#state-text", "waits for your permission")
    console.text(".session[aria-current]", "waits for your permission")
    assert "Three voices, one lamp." in console.card.locator(".diff").inner_text()
    assert not written.exists()
    console.card.get_by_role("button", name="Allow").click()
    console.marked("completed")
    assert console.card.count() == 0
    assert written.read_text().startswith("# Tonight")
    assert console.replies.last.locator("ol li").count() == 3
    assert console.replies.last.locator("strong").inner_text() == "written"
    console.text(".message.assistant .action", "allowed")
    assert console.page.locator("details.thinking").get_attribute("open") is None


def test_a_denial_reaches_the_model_with_its_reason(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console(gateway.url)
    console.new_session(gateway.workspace, "A denial")
    console.say("programme for tonight")
    console.card.wait_for()

    console.card.locator("input").fill("the paper is out")
    console.card.get_by_role("button", name="Deny").click()

    console.text(".message.assistant .action", "denied")
    console.text(".message.assistant .action", "the paper is out")


def test_two_pages_see_the_same_and_the_first_answer_closes_the_other_s_card(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    one = open_console(gateway.url)
    session = one.new_session(gateway.workspace, "Two pages")
    other = open_console(f"{gateway.url}#/session/{session}", beside=one)
    other.text("#title", "Two pages")
    one.say("question of the ending")
    one.card.wait_for()
    other.card.wait_for()
    assert one.card.inner_text() == other.card.inner_text()

    other.card.get_by_role("button", name=re.compile("happy")).click()

    one.card.wait_for(state="detached")
    for console in (one, other):
        console.text(".message.assistant", "Then it ends that way.")
        console.text(".message.assistant .action", "answered")


def test_a_turn_streams_until_it_is_stopped(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console(gateway.url)
    console.new_session(gateway.workspace, "A stop")
    console.say("slow song")
    console.text(".message.assistant .streaming", "Verse 5 of the song.")
    assert console.page.locator("#messages").get_attribute("aria-busy") == "true"

    console.page.locator("#stop").click()

    console.marked("aborted")
    console.text("#state-text", "stopped")
    console.text(".message.assistant footer", "stopped · 1 round")
    assert console.page.locator("#messages").get_attribute("aria-busy") == "false"


def test_what_is_said_meanwhile_waits_and_can_be_changed_moved_promoted_and_deleted(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console(gateway.url)
    console.new_session(gateway.workspace, "An inbox")
    console.say("slow song")
    console.text("#send", "Queue")
    rows = console.page.locator("#inbox li")
    for text in ("first", "second", "third", "fourth"):
        console.say(f"the {text}")
        console.text("#inbox .said", f"the {text}")

    rows.nth(1).get_by_label("Move up").click()
    console.text("#inbox li:nth-child(1) .said", "the second")
    rows.nth(1).get_by_label("Edit").click()
    rows.nth(1).locator("textarea").fill("the first, changed")
    rows.nth(1).locator("textarea").press("Control+Enter")
    console.text("#inbox li:nth-child(2) .said", "the first, changed")
    rows.nth(3).get_by_label("Delete").click()
    rows.nth(3).wait_for(state="detached")
    assert rows.locator(".said").all_inner_texts() == [
        "the second",
        "the first, changed",
        "the third",
    ]
    rows.nth(0).get_by_label("Steer the running turn with it").click()
    console.text("#inbox li:nth-child(1) .mode", "steers")
    console.page.locator("#stop").click()
    console.text(".message.user", "the second")


def test_a_gateway_that_is_killed_is_waited_for_and_the_page_goes_on_where_it_was(
    own_gateway: SceneGateway, open_console: OpenConsole
) -> None:
    own_gateway.start()
    console = open_console(own_gateway.url)
    console.new_session(own_gateway.workspace, "A kill")
    console.say("programme for tonight")
    console.card.wait_for()
    before = console.page.locator(".message").count()

    own_gateway.end(signal.SIGKILL)

    console.text("#banner", "The connection is lost. Trying again")
    console.text("#lamp-text", "not connected")
    # Nothing that is known is taken off the page.
    assert console.page.locator(".message").count() == before
    assert console.card.is_visible()
    own_gateway.start()
    console.text("#lamp-text", "connected")
    console.gone("#banner")
    console.card.get_by_role("button", name="Allow").click()
    console.marked("completed")
    assert console.page.locator(".message").count() == before


def test_a_gateway_that_stops_says_so_and_a_turn_it_cut_off_is_shown_as_it_ended(
    own_gateway: SceneGateway, open_console: OpenConsole
) -> None:
    own_gateway.start()
    console = open_console(own_gateway.url)
    console.new_session(own_gateway.workspace, "A stop of the gateway")
    console.say("slow song")
    console.text(".message.assistant", "Verse 3 of the song.")

    own_gateway.end()

    console.text("#banner", "The gateway has stopped. Trying again")
    own_gateway.start()
    console.text("#lamp-text", "connected")  # by itself
    console.marked("aborted")
    console.text("#state-text", "stopped")
    fresh = open_console(console.page.url)
    fresh.marked("aborted")
    for each in (console, fresh):
        each.text(".message.assistant footer", "stopped with the gateway")
    assert console.replies.all_inner_texts() == fresh.replies.all_inner_texts()


def test_a_turn_goes_on_while_the_page_is_away_and_nothing_is_missed(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console(gateway.url)
    console.new_session(gateway.workspace, "Away")
    console.say("slow song")
    console.text(".message.assistant", "Verse 2 of the song.")

    console.page.context.set_offline(True)
    console.page.evaluate("dispatchEvent(new Event('offline'))")
    console.page.context.set_offline(False)
    address = console.page.url
    console.page.close()
    again = open_console(address)

    again.text(".message.assistant", "Verse 40 of the song.")
    told = again.replies.first.inner_text()
    verses = [int(number) for number in re.findall(r"Verse (\d+) of", told)]
    assert verses == list(range(1, len(verses) + 1))
    again.page.locator("#stop").click()


def test_a_token_is_asked_for_kept_in_the_tab_and_never_in_an_address(
    own_gateway: SceneGateway, open_console: OpenConsole
) -> None:
    own_gateway.tokens = "correct-horse-battery-staple-42\nreader-reader-reader-42 read"
    own_gateway.start()
    console = open_console(own_gateway.url)
    dialog, token = (
        console.page.locator("#token-dialog"),
        console.page.locator("#token"),
    )
    dialog.wait_for()

    token.fill("wrong-wrong-wrong-wrong-wrong-wr")
    token.press("Enter")
    console.text("#token-why", "not right")
    token.fill("correct-horse-battery-staple-42")
    token.press("Enter")

    dialog.wait_for(state="hidden")
    console.new_session(own_gateway.workspace, "A token")
    console.page.reload()
    console.text("#title", "A token")
    assert not dialog.is_visible()
    assert "horse" not in console.page.url
    assert "horse" not in console.page.evaluate("JSON.stringify({...localStorage})")
    reader = open_console(console.page.url)
    reader.page.locator("#token").fill("reader-reader-reader-42")
    reader.page.locator("#token").press("Enter")
    reader.text("#title", "A token")
    assert reader.page.locator("#prompt").is_disabled()


def test_search_finds_a_message_and_opens_it_and_a_fork_begins_there(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console(gateway.url)
    console.new_session(gateway.workspace, "A search")
    console.say("the xylophone is out of tune")
    console.marked("completed")
    console.page.keyboard.press("Escape")

    console.page.keyboard.press("s")
    console.page.locator("#search").fill("xylophone")
    console.text("#hits .snippet", "xylophone")
    console.page.locator("#hits button").first.click()
    console.text(".message.user", "xylophone")
    message = console.page.locator(".message.assistant").first
    message.hover()
    message.get_by_role("button", name="Fork here").click()

    console.text("#toasts", "A fork was made")
    console.text(".message.user", "xylophone")


def test_the_panels_tell_of_the_run_its_actors_its_cost_and_its_settings(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console(gateway.url)
    session = console.new_session(gateway.workspace, "The panels")
    console.say("plan the evening")
    console.text("#plan", "Plan 1 of 3")
    console.text("#plan", "Build the stage")
    console.page.locator("#tab-actors").click()
    console.text(".actors .mine", session[:8])
    console.page.locator("#stop").click()
    console.marked("aborted")

    console.page.locator("#tab-journal").click()
    console.text(".run .mark", "aborted")
    for kind in ("attempt", "tool", "run_ended"):
        console.page.locator(f'.timeline [data-kind="{kind}"]').first.wait_for()
    console.page.locator("#tab-usage").click()
    console.text(".tile", "Input")
    console.page.locator("#tab-settings").click()
    console.page.locator("#panel input[name=title]").fill("Renamed")
    console.page.locator("#panel input[name=title]").press("Enter")
    console.text("#title", "Renamed")
    console.page.locator("#panel select").select_option("full_access")
    console.page.locator("#tab-agents").click()
    console.text(".agents", "default")


def test_the_demo_of_the_command_can_be_played_to_its_end(
    open_console: OpenConsole,
) -> None:
    command = [sys.executable, "-P", "-m", "greenroom", "serve"]
    command += ["--demo", "--json", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            console = open_console(json.loads(server.stdout.readline())["url"])
            console.page.locator(".session").click()
            console.card.get_by_role("button", name=re.compile("Ada")).click()
            for change in ("programme.md", "wc -w"):
                console.text(".ask.permission", change)
                console.card.get_by_role("button", name="Allow").click()
            console.marked("completed")
            console.text("#plan", "Plan 3 of 3")
        finally:
            server.terminate()
