"""The console at its limits: hostile text and gateways, speed, width, no mouse."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from kit.console import Console, OpenConsole, SceneGateway

PHONE: Final = {"viewport": {"width": 360, "height": 740}, "has_touch": True}

OVERFLOWS: Final = """() =>
    [...document.querySelectorAll("body, #frame, #scroller, #dock")]
    .filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.id)"""

FROM_END: Final = """() => { const each = document.getElementById("scroller");
    return each.scrollHeight - each.scrollTop - each.clientHeight; }"""

UNNAMED: Final = """() =>
    [...document.querySelectorAll("button, input, textarea, select")]
    .filter((each) => !each.hidden && !(each.textContent.trim() || each.labels?.length
        || each.getAttribute("aria-label"))).map((each) => each.outerHTML)"""

#### Hostile text


def test_what_a_model_wrote_is_text_whatever_it_holds(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console(gateway.url)
    console.new_session(gateway.workspace, "<b>Hostile</b>")
    console.say("hostile <img src=x onerror=owned()> \u202eeltit")

    console.card.wait_for()
    asked = console.card.inner_text()
    assert "\u27e8U+202E\u27e9" in asked
    assert "\u202e" not in asked
    assert "\x1b" not in asked
    # Of what somebody allows nothing is left out, be it for terminals only.
    assert "\u27e8U+001B\u27e9[31mred" in asked
    assert "W" * 5_000 in asked
    console.card.get_by_role("button", name="Allow").click()
    console.text(".message.assistant .prose", "WWWW")

    page = console.page
    made = page.locator("#messages, #asks, #sessions, #top").locator(
        "img, script, style, iframe, b, [onerror]"
    )
    assert made.count() == 0
    assert "Hostile" in page.title()
    assert page.evaluate(OVERFLOWS) == []
    told = console.replies.last.inner_text()
    assert "<script>owned()</script>" in told
    assert "\u27e8U+202E\u27e9001$ ot\u27e8U+202C\u27e9" in told
    assert "\u27e8U+001B\u27e9]8;;https://evil.example\u27e8U+0007\u27e9link" in told
    assert "bank.example (evil.example)" in told
    links = page.locator("#messages a")
    assert {link.get_attribute("href") for link in links.all()} == {
        "https://evil.example",
        "https://evil.example/",
    }
    assert {link.get_attribute("rel") for link in links.all()} == {
        "noopener noreferrer nofollow"
    }


CLEANED: Final = """async (text) => {
    const { cleanOutput, oneLine } = await import("/console/dom.js");
    return [cleanOutput(text), oneLine(text)];
}"""


def test_what_a_program_printed_has_no_colours_but_all_of_its_words(
    idle_console: Console,
) -> None:
    printed = idle_console.page.evaluate(
        CLEANED, "\x1b[1;31mred\x1b[0m \x1b]0;title\x07then\r\nls \x1b]0;\nrm -rf /\x07"
    )

    output, line = printed
    bell = "\u27e8U+0007\u27e9"
    assert output == f"red then\nls \u27e8U+001B\u27e9]0;\nrm -rf /{bell}"
    assert "rm -rf /" in line


LINKED: Final = """async (text) => {
    const { render } = await import("/console/prose.js");
    return [...render(text).querySelectorAll("a")].map((each) => each.href);
}"""


def test_a_full_stop_behind_an_address_is_not_of_it(idle_console: Console) -> None:
    text = "See https://a.example/b?c=1. Or https://a.example/d, (https://a.example/)!"

    assert idle_console.page.evaluate(LINKED, text) == [
        "https://a.example/b?c=1",
        "https://a.example/d",
        "https://a.example/",
    ]


def test_the_policy_refuses_markup_and_scripts_even_if_the_page_had_a_hole(
    idle_console: Console, gateway: SceneGateway
) -> None:
    page = idle_console.page

    refused = page.evaluate(
        """() => {
            try { document.body.innerHTML = "<b>x</b>"; return "made" }
            catch (error) { return error.name }
        }"""
    )

    assert refused == "TypeError"
    answer = page.request.get(gateway.url)
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"(https?:)?//(?!www\.w3\.org/2000/svg)", answer.text())


HOSTILE_FRAMES: Final = (
    "",
    "{",
    "null",
    "[1, 2]",
    '"text"',
    '{"jsonrpc": "2.0", "id": 10000, "result": {}}',
    '{"jsonrpc": "2.0", "id": {"a": 1}, "error": null}',
    '{"method": "_greenroom/event"}',
    '{"method": "_greenroom/event", "params": {"event": {"type": "constructor"}}}',
    '{"method": "_greenroom/ended", "params": {"sessionId": "other"}}',
    '{"method": "session/request_permission", "id": 1, "params": {}}',
)


def test_a_gateway_that_talks_nonsense_is_not_believed(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console("about:blank")
    page = console.page
    sockets: list[Any] = []

    def between(client: Any) -> None:
        server = client.connect_to_server()
        sockets.append(client)
        client.on_message(server.send)
        server.on_message(client.send)

    page.route_web_socket(re.compile("/acp$"), between)
    page.goto(gateway.url)
    session = console.new_session(gateway.workspace, "Nonsense")

    for frame in HOSTILE_FRAMES:
        sockets[0].send(frame)
    for event in (
        {"type": "constructor", "sessionId": session},
        {"type": "stream/updated", "sessionId": session, "messageId": "no"},
        {"type": "interaction/settled", "sessionId": session, "interactionId": "no"},
    ):
        params = {"event": event}
        sockets[0].send(json.dumps({"method": "_greenroom/event", "params": params}))

    console.say("still here")
    console.text(".message.assistant", "You said: still here")


#### Speed

MANY_EVENTS: Final = """async (count) => {
    const { SessionModel } = await import("/console/model.js");
    const { Transcript } = await import("/console/transcript.js");
    const model = new SessionModel("s");
    const [scroller, list, toEnd] = ["scroller", "messages", "to-end"].map((id) =>
        document.getElementById(id));
    const view = new Transcript(scroller, list, toEnd, { model, loadOlder() {} });
    const message = (n) => ({ id: `m${n}`, orderSeq: n + 1, role: "assistant",
        status: "pending", createdAt: 0, updatedAt: 0, blocks: [] });
    let spent = 0, longest = 0, seq = 0;
    const text = "The lamp is lit, the chorus waits. ";
    for (let i = 0; i < count; i++) {
        const n = Math.floor(i / 25), k = i % 25;
        const begun = performance.now();
        if (k === 0) model.apply({ type: "session/messages_changed", seq: ++seq,
            message: message(n) });
        else model.apply({ type: "stream/updated", messageId: `m${n}`, kind: "text",
            itemId: `m${n}.0`, offset: (k - 1) * text.length, text });
        const isFrame = i % 100 === 99;
        if (isFrame) view.draw(model.take());
        const took = performance.now() - begun;
        spent += took;
        longest = Math.max(longest, took);
        if (isFrame) await new Promise(requestAnimationFrame);
    }
    return { spent, longest, nodes: list.querySelectorAll("*").length,
        kept: model.messages.size, last: list.lastElementChild.textContent.length };
}"""


def test_ten_thousand_events_take_little_time_and_leave_a_bounded_page(
    idle_console: Console,
) -> None:
    figures = idle_console.page.evaluate(MANY_EVENTS, 10_000)

    assert figures["last"] > 24 * 30
    assert figures["nodes"] < 2_500
    assert figures["kept"] <= 310
    # A second at most on a quiet machine; drawing all anew each time takes minutes.
    assert figures["spent"] < 8_000, figures


GROWTH: Final = """async (size) => {
    const { Prose } = await import("/console/prose.js");
    const prose = new Prose();
    document.getElementById("messages").append(prose.element);
    const begun = performance.now();
    let text = "", first = null;
    while (text.length < size) {
        prose.update(text += "word ".repeat(20));
        const { childElementCount, firstElementChild } = prose.element;
        if (!first && childElementCount > 1) first = firstElementChild;
    }
    const chunks = [...prose.element.children];
    return { spent: performance.now() - begun, told: prose.element.textContent === text,
        longest: Math.max(...chunks.map((chunk) => chunk.textContent.length)),
        stays: chunks[0] === first };
}"""


def test_a_long_paragraph_is_not_drawn_again_each_time_that_it_grows(
    idle_console: Console,
) -> None:
    figures = idle_console.page.evaluate(GROWTH, 100_000)

    assert figures["told"]
    assert figures["stays"]
    assert figures["longest"] <= 12_100
    assert figures["spent"] < 4_000, figures


#### Width, and no mouse


def test_a_phone_shows_all_of_it_and_buttons_that_a_thumb_can_hit(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console(gateway.url, **PHONE)
    page = console.page
    console.text("#empty", "New session")
    page.locator("#toggle-sidebar").tap()
    console.new_session(gateway.workspace, "On a phone")
    page.locator("#sidebar").wait_for(state="hidden")

    console.say("programme for tonight")
    console.card.wait_for()

    assert page.evaluate(OVERFLOWS) == []
    # The card took room from the conversation, which still shows its end.
    assert not page.locator("#to-end").is_visible()
    assert page.evaluate(FROM_END) < 2
    for button in (
        console.card.get_by_role("button", name="Allow"),
        page.locator("#send"),
        page.locator("#toggle-sidebar"),
    ):
        box = button.bounding_box()
        assert box is not None
        assert box["height"] >= 40
        assert box["x"] + box["width"] <= 360
    console.card.get_by_role("button", name="Allow").tap()
    console.marked("completed")
    assert page.evaluate(OVERFLOWS) == []
    page.locator("#toggle-inspector").tap()
    page.locator("#tab-usage").tap()
    console.text(".tile", "Input")
    page.locator("#close-inspector").tap()
    page.locator("#inspector").wait_for(state="hidden")


def test_a_phone_without_a_session_says_where_the_list_is(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    open_console(gateway.url).new_session(gateway.workspace, "On the list")
    page = open_console(gateway.url, **PHONE).page

    page.get_by_role("button", name="Show the list").click()
    page.locator(".session", has_text="On the list").click()

    page.locator("#title", has_text="On the list").wait_for()
    assert not page.locator("#sidebar").is_visible()


def test_everything_can_be_done_with_the_keyboard_alone(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console(gateway.url)
    page, keys = console.page, console.page.keyboard
    console.text("#lamp-text", "connected")
    keys.press("Tab")
    assert page.locator(":focus").inner_text() == "To the prompt"
    keys.press("?")
    console.text("#help-dialog", "allow what is asked")
    keys.press("Escape")
    keys.press("n")
    page.locator("#new-dialog").wait_for()
    page.locator("#new-workspace:focus").wait_for()
    keys.press("Control+a")
    keys.type(str(gateway.workspace))
    keys.press("Tab")
    keys.type("By keyboard")
    keys.press("Enter")
    console.text("#title", "By keyboard")
    page.locator("#prompt:focus").wait_for()

    # In the text field a letter is a letter.
    keys.type("programme a d x")
    keys.press("Enter")
    console.card.wait_for()
    keys.type("a")
    assert page.locator("#prompt").input_value() == "a"
    keys.press("Backspace")
    keys.press("Escape")
    console.card.locator("button:enabled", has_text="Allow").wait_for()
    keys.press("w")
    console.card.locator("button:focus", has_text="Allow").wait_for()
    keys.press("a")

    console.marked("completed")
    keys.press("/")
    keys.type("question of the ending")
    keys.press("Enter")
    console.card.wait_for()
    keys.press("Escape")
    # What was typed a moment before the card came answers nothing.
    console.card.locator("button:enabled", has_text="sad").wait_for()
    keys.press("2")
    console.text(".message.assistant", "Then it ends that way.")
    keys.press("/")
    keys.type("slow song")
    keys.press("Enter")
    console.text("#send", "Queue")
    keys.press("Control+.")
    console.marked("aborted")
    assert page.evaluate(UNNAMED) == []


def test_keys_that_stand_alone_can_be_turned_off(
    gateway: SceneGateway, open_console: OpenConsole
) -> None:
    console = open_console(gateway.url)
    page, keys = console.page, console.page.keyboard
    console.new_session(gateway.workspace, "No single keys")
    page.locator("#open-help").click()
    page.locator("#single-keys").uncheck()
    keys.press("Escape")
    console.say("question of the ending")
    happy = console.card.locator("button:enabled", has_text="happy")
    happy.wait_for()
    keys.press("Escape")
    keys.press("1")
    keys.press("n")
    assert not page.locator("#new-dialog").is_visible()
    assert console.card.is_visible()
    happy.press("Enter")
    console.text(".message.assistant", "Then it ends that way.")
