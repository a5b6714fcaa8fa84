"""What somebody does with the console: attach, prompt, approve, cancel, come back."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import sys
from typing import Any, Final

from kit.console import Console, OpenConsole, SceneGateway


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


PUT_IN: Final = """([kind, where, files]) => {
    const transfer = new DataTransfer();
    for (const [name, type, size] of files) {
        transfer.items.add(new File([new Uint8Array(size)], name, { type }));
    }
    const target = document.querySelector(where);
    const options = { bubbles: true, cancelable: true };
    const event = kind === "paste"
        ? new ClipboardEvent(kind, { ...options, clipboardData: transfer })
        : new DragEvent(kind, { ...options, dataTransfer: transfer });
    return target.dispatchEvent(event);
}"""
DOT: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)


def test_images_are_chosen_pasted_and_dropped_bounded_and_shown_where_they_were_sent(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console(gateway.url)
    console.new_session(gateway.workspace, "Images")
    page = console.page
    tray = page.locator("#tray img")
    with page.expect_file_chooser() as chooser:
        page.locator("#attach").press("Enter")
    dot: Any = {"name": "dot.png", "mimeType": "image/png", "buffer": DOT}
    chooser.value.set_files([dot])
    tray.first.wait_for()

    # The page keeps the event to itself: nothing is opened in its place.
    small = ["small.gif", "image/gif", 300]
    assert not page.evaluate(PUT_IN, ["paste", "#prompt", [small]])
    page.locator("#tray img >> nth=1").wait_for()
    dropped = [["a.txt", "text/plain", 3], ["large.gif", "image/gif", 530_000]]
    assert not page.evaluate(PUT_IN, ["drop", "body", dropped])

    console.text("#toasts", "a.txt is no PNG, JPEG, GIF or WebP image.")
    console.text("#toasts", "large.gif is too large: the images of a message may have")
    assert tray.count() == 2
    page.get_by_label("Take out small.gif").press("Enter")
    page.get_by_label("Take out dot.png").and_(page.locator(":focus")).wait_for()
    console.say("hello dot")

    console.text(".message.assistant", "You said: hello dot")
    shown = page.locator(".message.user img")
    assert shown.evaluate("each => [each.naturalWidth, each.alt]") == [
        1,
        "An image of the user",
    ]
    assert tray.count() == 0
    page.reload()
    shown.wait_for()
    # Taken back, it can be sent again as it was.
    page.locator(".message.user").get_by_role("button", name="Rewind here").press(
        "Enter"
    )
    page.locator("#rewind-form .primary").click()
    tray.wait_for()
    assert page.locator("#prompt").input_value() == "hello dot"


LARGE: Final = """async () => {
    const canvas = new OffscreenCanvas(480, 400);
    const context = canvas.getContext("2d");
    const noise = context.createImageData(480, 400);
    for (let at = 0; at < noise.data.length; at += 0x10000) {
        crypto.getRandomValues(noise.data.subarray(at, at + 0x10000));
    }
    context.putImageData(noise, 0, 0);
    const file = new File([await canvas.convertToBlob()], "large.png",
        { type: "image/png" });
    const { Tray } = await import("/console/images.js");
    const told = [];
    const tray = new Tray({ say: (text) => told.push(text), complain: told.push });
    await tray.add([file]);
    const [{ mediaType, data }] = tray.parts;
    return { size: file.size, mediaType, chars: data.length, told };
}"""


def test_an_image_that_is_too_large_is_made_to_fit_and_that_is_said(
    idle_console: Console,
) -> None:
    made = idle_console.page.evaluate(LARGE)

    assert made["size"] > 700_000
    assert made["mediaType"] == "image/jpeg"
    assert 10_000 < made["chars"] <= 700_000
    assert made["told"] == [
        "large.png was made smaller, so that the message can be sent."
    ]


AT_ONCE: Final = """async () => {
    const { Tray } = await import("/console/images.js");
    const told = [];
    const note = (text) => told.push(text);
    const tray = new Tray({ say: note, complain: note });
    const file = (name) => new File(["GIF89a"], name, { type: "image/gif" });
    const names = () => tray.images.map(({ name }) => name);
    tray.add([file("one.gif")]);
    await tray.add([file("two.gif"), file("three.gif")]);
    const adding = tray.add([file("four.gif")]);
    document.querySelector("#tray button").click();
    await adding;
    const before = names();
    const late = tray.add([file("late.gif")]);
    tray.set([]);
    await late;
    return { before, after: names(), told };
}"""


def test_images_that_are_added_at_once_are_all_there_and_none_is_in_the_next_message(
    idle_console: Console,
) -> None:
    seen = idle_console.page.evaluate(AT_ONCE)

    assert seen["before"] == ["two.gif", "three.gif", "four.gif"]
    assert seen["after"] == []
    assert seen["told"] == [
        "late.gif was left out: its message was gone before it was read."
    ]


def test_a_gateway_that_is_killed_is_waited_for_and_the_page_goes_on_where_it_was(
    mortal_gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console(mortal_gateway.url)
    console.new_session(mortal_gateway.workspace, "A kill")
    console.say("programme for tonight")
    console.card.wait_for()
    before = console.page.locator(".message").count()

    mortal_gateway.end(signal.SIGKILL)

    console.text("#banner", "The connection is lost. Trying again")
    console.text("#lamp-text", "not connected")
    # Nothing that is known is taken off the page.
    assert console.page.locator(".message").count() == before
    assert console.card.is_visible()
    mortal_gateway.start()
    console.text("#lamp-text", "connected")
    console.gone("#banner")
    console.card.get_by_role("button", name="Allow").click()
    console.marked("completed")
    assert console.page.locator(".message").count() == before


def test_a_gateway_that_stops_says_so_and_a_turn_it_cut_off_is_shown_as_it_ended(
    mortal_gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console(mortal_gateway.url)
    console.new_session(mortal_gateway.workspace, "A stop of the gateway")
    console.say("slow song")
    console.text(".message.assistant", "Verse 3 of the song.")

    mortal_gateway.end()

    console.text("#banner", "The gateway has stopped. Trying again")
    mortal_gateway.start()
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
