"""How the console keeps step with a gateway: cursors, offsets, pages, what was cut."""

from __future__ import annotations

from typing import Any, Final

from kit.console_wire import (
    SESSION,
    SETTINGS,
    RefusalError,
    item,
    message,
    snapshot,
)

REWIND: Final = "session/rewind"


def test_older_messages_are_read_in_pages_and_what_is_in_sight_stays_there(
    open_played: Any,
) -> None:
    def attach(_: dict[str, Any]) -> dict[str, Any]:
        newest = [message(number) for number in range(201, 301)]
        return snapshot(newest, older=True)

    def page_of(asked: dict[str, Any]) -> dict[str, Any]:
        first = max(1, asked["before"] - asked["limit"])
        older = [message(number) for number in range(first, asked["before"])]
        return {"messages": older, **({"next": first} if first > 1 else {})}

    console, played = open_played(session__attach=attach, session__messages=page_of)
    console.text(".message", "Message 300.")
    scroller, shown = (
        console.page.locator("#scroller"),
        console.page.locator(".message"),
    )
    assert shown.count() < 100

    seen: set[str] = set()
    for _ in range(40):
        seen |= set(shown.evaluate_all("all => all.map((each) => each.dataset.id)"))
        assert shown.count() <= 150
        if "m1" in seen:
            break
        first = shown.first.get_attribute("data-id")
        scroller.evaluate("each => { each.scrollTop = 0 }")
        console.page.wait_for_function(
            "id => document.querySelector('.message').dataset.id !== id", arg=first
        )
        # What was first is where it was: in sight, or just above.
        assert scroller.evaluate("each => each.scrollTop") > 0 or "m1" in seen
    assert seen == {f"m{number}" for number in range(1, 301)}
    befores = [asked["before"] for asked in played.params_of("session/messages")]
    assert befores == sorted(set(befores), reverse=True)
    order = shown.evaluate_all("all => all.map((each) => +each.dataset.id.slice(1))")
    assert order == sorted(order)
    console.page.locator("#to-end").click()
    console.text(".message", "Message 300.")


def test_a_page_that_was_too_slow_attaches_again_after_what_it_has_seen(
    open_played: Any,
) -> None:
    console, played = open_played()
    played.tell({"type": "session/messages_changed", "seq": 107, "message": message(3)})
    # Of this fact another event follows, so it is not yet the cursor.
    event = {"type": "session/messages_changed", "seq": 109, "message": message(4)}
    played.tell(event, more=True)
    console.text(".message", "Message 4.")

    played.connections[-1].close(code=4290, reason="resume")

    played.wait_for("session/attach", 2)
    attaches = played.params_of("session/attach")
    assert [asked.get("after") for asked in attaches] == [None, 107]


def test_a_cursor_that_is_not_known_any_more_begins_anew(open_played: Any) -> None:
    def attach(asked: dict[str, Any]) -> dict[str, Any]:
        if "after" in asked:
            raise RefusalError("unknown_cursor")
        known = len(played_once) + 1
        played_once.append(known)
        return snapshot([message(number) for number in range(1, known + 1)])

    played_once: list[int] = []
    console, played = open_played(session__attach=attach)
    assert console.page.locator(".message").count() == 1

    ended = {"sessionId": SESSION, "reason": "slow", "after": 100}
    played.notify("ended", ended)

    console.text(".message", "Message 2.")


def test_text_that_is_told_twice_is_shown_once_and_counted_as_python_counts(
    open_played: Any,
) -> None:
    console, played = open_played()
    open_reply = message(4, status="pending", blocks=[])
    played.tell({"type": "session/messages_changed", "seq": 101, "message": open_reply})
    item = {"type": "stream/updated", "runId": "r", "messageId": "m4", "itemId": "m4.0"}
    for offset, text in (
        (0, "\U0001f3ad one "),
        (0, "\U0001f3ad one "),
        (0, "\U0001f3ad"),
        (2, "one two"),
    ):
        played.tell({**item, "kind": "text", "offset": offset, "text": text})
    played.tell({**item, "kind": "text", "offset": 9, "text": " \U0001f3ad end"})

    console.text(".message.assistant", "end")
    assert console.replies.last.inner_text() == "\U0001f3ad one two \U0001f3ad end"


def test_text_that_was_told_but_never_kept_leaves_when_the_gateway_comes_back(
    open_played: Any,
) -> None:
    def attach(asked: dict[str, Any]) -> dict[str, Any]:
        if "after" in asked:
            return {"seq": asked["after"]}
        return snapshot([message(1), message(2, "kept", status="pending")])

    console, played = open_played(session__attach=attach)
    item = {"type": "stream/updated", "runId": "r", "messageId": "m2", "itemId": "m2.1"}
    played.tell({**item, "kind": "text", "offset": 0, "text": "never kept"})
    console.text(".message.assistant", "never kept")

    played.connections[-1].close(code=1011)
    played.wait_for("session/attach", 2)
    ended = {**message(2), "blocks": []}
    played.tell({"type": "session/messages_changed", "seq": 101, "message": ended})

    console.page.locator('[data-id="m2"][data-status="sent"]').wait_for()
    assert console.replies.all_inner_texts() == ["kept"]


SHRINK: Final = """() => {
    const scroller = document.getElementById("scroller");
    scroller.scrollTop = scroller.scrollHeight;
    // Its event comes when there is less room already.
    document.getElementById("dock").style.paddingBlockStart = "300px";
}"""


def test_the_end_stays_in_sight_when_what_is_below_it_grows(open_played: Any) -> None:
    def attach(_: dict[str, Any]) -> dict[str, Any]:
        return snapshot([message(number) for number in range(1, 61)])

    console, played = open_played(session__attach=attach)
    console.text(".message", "Message 60.")
    console.page.evaluate("document.getElementById('scroller').scrollTop -= 20")
    console.page.evaluate("new Promise(requestAnimationFrame)")

    console.page.evaluate(SHRINK)
    changed = {"type": "session/messages_changed", "seq": 101, "message": message(61)}
    played.tell(changed)

    console.text(".message", "Message 61.")
    box = console.page.locator('[data-id="m61"]').bounding_box()
    dock = console.page.locator("#dock").bounding_box()
    assert box is not None
    assert dock is not None
    assert box["y"] + box["height"] <= dock["y"]
    assert not console.page.locator("#to-end").is_visible()


def test_a_message_that_is_taken_back_leaves_and_one_that_ended_stays_so(
    open_played: Any,
) -> None:
    console, played = open_played()
    late = message(2, "late", status="pending")
    played.tell({"type": "session/messages_changed", "seq": 101, "message": late})
    played.tell({"type": "session/message_retracted", "seq": 102, "messageId": "m1"})

    console.page.locator('[data-id="m1"]').wait_for(state="detached")
    assert console.replies.all_inner_texts() == ["Message 2."]


def test_what_was_cut_out_of_a_frame_is_read_in_slices_when_it_is_asked_for(
    open_played: Any,
) -> None:
    whole = "begin " + "\U0001f3ad middle " * 100 + "end"

    def attach(_: dict[str, Any]) -> dict[str, Any]:
        cut = {"messageId": "m2", "blockId": "m2.0", "field": "text"}
        told = [message(1), message(2, whole[:50])]
        return snapshot(told, cut=[{**cut, "total": len(whole)}])

    def block(asked: dict[str, Any]) -> dict[str, Any]:
        start = asked["offset"]
        return {"text": whole[start : start + 400], "total": len(whole)}

    console, played = open_played(session__attach=attach, session__block=block)
    console.page.get_by_role("button", name="Read the whole of it").click()

    console.text(".message.assistant .prose", "middle end")
    assert console.replies.last.inner_text() == whole
    offsets = [asked["offset"] for asked in played.params_of("session/block")]
    assert offsets == [0, 400, 800]


def test_a_gateway_that_refuses_the_page_is_not_asked_again_by_itself(
    open_played: Any,
) -> None:
    console, played = open_played()

    played.connections[-1].close(code=4403, reason="pages of that origin")

    console.text("#banner", "The gateway refuses this page: pages of that origin.")
    # More than the time after which it tries again by itself otherwise.
    console.page.wait_for_timeout(1_000)
    assert len(played.connections) == 1
    console.page.locator("#banner-retry").click()
    console.text("#lamp-text", "connected")


def test_a_queued_message_whose_answer_is_lost_is_sent_again_under_its_id(
    open_played: Any,
) -> None:
    def queue(_: dict[str, Any]) -> dict[str, Any]:
        if len(played.params_of("queue")) == 1:
            played.connections[-1].close(code=1001)
            raise RefusalError("lost")
        return {"inputId": "i", "delivery": "waiting"}

    console, played = open_played(queue=queue)
    console.say("once only")

    played.wait_for("queue", 2)
    first, second = played.params_of("queue")
    assert first == second
    assert first["content"] == "once only"


KEY_AT_ONCE: Final = """() => new MutationObserver((_, seen) => {
    if (!document.querySelector(".ask")) return;
    seen.disconnect();
    const typed = new KeyboardEvent("keydown", { key: "a", bubbles: true });
    document.body.dispatchEvent(typed);
}).observe(document.getElementById("asks"), { childList: true })"""


def test_what_was_typed_before_a_card_could_be_read_answers_nothing(
    open_played: Any,
) -> None:
    console, played = open_played(interaction__answer=lambda _: {})
    console.page.evaluate(KEY_AT_ONCE)
    console.page.locator("#prompt").blur()
    asks = {"type": "action", "id": "m4.1", "toolBlockId": "m4.1", "title": "May it?"}
    asks |= {"action": "tool_call_permission", "origin": "pre-check-permission"}
    asked = message(4, status="pending", blocks=[asks])
    played.tell({"type": "session/messages_changed", "seq": 101, "message": asked})

    allow = console.card.locator("button:enabled", has_text="Allow")
    allow.wait_for()
    assert played.params_of("interaction/answer") == []
    console.page.keyboard.press("a")
    played.wait_for("interaction/answer", 1)
    (answer,) = played.params_of("interaction/answer")
    assert answer["interactionId"] == "m4.1"
    assert answer["answer"] == {"type": "grant"}


def test_a_long_list_is_read_in_pages_and_stays_when_it_is_read_again(
    open_played: Any,
) -> None:
    def page_of(asked: dict[str, Any]) -> dict[str, Any]:
        first = int(asked["before"]["id"][1:]) + 1 if "before" in asked else 1
        numbers = range(first, min(first + asked["limit"], 131))
        items = [
            {**item(), "id": f"s{number}", "updatedAt": 1_000.0 - number}
            for number in numbers
        ]
        key = {"updatedAt": items[-1]["updatedAt"], "id": items[-1]["id"]}
        return {"sessions": items, **({"next": key} if numbers[-1] < 130 else {})}

    console, played = open_played(session__list=page_of)
    rows = console.page.locator(".session")
    for shown in (50, 100, 130):
        console.page.wait_for_function(
            "count => document.querySelectorAll('.session').length === count", arg=shown
        )
        if shown < 130:
            console.page.locator("#more-sessions").click()
    assert not console.page.locator("#more-sessions").is_visible()

    asked = len(played.params_of("session/list"))
    played.tell({"type": "session/updated", "seq": 101, "settings": SETTINGS})
    played.wait_for("session/list", asked + 1)
    console.page.evaluate("new Promise(requestAnimationFrame)")

    ids = rows.evaluate_all("all => all.map((each) => each.dataset.id)")
    assert ids == [f"s{number}" for number in range(1, 131)]


def test_who_stands_on_a_row_of_the_list_stays_there_when_it_moves(
    open_played: Any,
) -> None:
    def order(_: dict[str, Any]) -> dict[str, Any]:
        return {"sessions": [{**item(), "id": each} for each in ids]}

    ids = ["s1", "s2", "s3"]
    console, played = open_played(session__list=order)
    console.page.locator('.session[data-id="s3"]').focus()

    ids.insert(0, ids.pop())
    played.tell({"type": "session/updated", "seq": 101, "settings": SETTINGS})

    console.page.locator('li:first-child > .session[data-id="s3"]').wait_for()
    assert console.page.evaluate("document.activeElement.dataset.id") == "s3"


def test_why_a_turn_failed_is_said_though_its_messages_are_taken_back(
    open_played: Any,
) -> None:
    console, played = open_played()
    metadata = {"runOutcome": "error", "errorText": "the model fell over"}
    failed = message(4, status="error", metadata=metadata)
    played.tell({"type": "session/messages_changed", "seq": 101, "message": failed})
    played.tell({"type": "stream/failed", "seq": 102, "message": failed})
    played.tell({"type": "session/message_retracted", "seq": 103, "messageId": "m4"})
    played.tell({"type": "session/status_changed", "version": 9, "state": "error"})

    console.text("#state-text", "ended early: the model fell over")
    played.tell({"type": "session/status_changed", "version": 10, "state": "idle"})
    console.text("#state-text", "idle")


def test_a_rewind_is_looked_at_again_when_something_was_said_meanwhile(
    open_played: Any,
) -> None:
    refused = {"path": "a.md", "action": "refused", "reason": "it has been changed"}

    def rewind(asked: dict[str, Any]) -> dict[str, Any]:
        gone = ["m2", "m3", "m4"][: 1 if len(played.params_of(REWIND)) == 1 else 3]
        dry = asked.get("dryRun", False)
        files = [refused] if asked.get("files") else []
        told = {"through": "m1", "count": len(gone), "messages": gone, "files": files}
        return {**told, "commands": 2, "done": not dry}

    console, played = open_played(session__rewind=rewind)
    page = console.page
    page.locator(".message.user").get_by_role("button", name="Rewind here").click()
    console.text("#rewind-what", "1 message will be taken back")
    console.text("#rewind-list", "it has been changed")
    console.text("#rewind-commands", "What 2 commands did stays done.")
    assert page.locator("#rewind-files").is_disabled()
    played.tell({"type": "session/messages_changed", "seq": 101, "message": message(4)})
    console.text(".message", "Message 4.")

    go = page.locator("#rewind-form").get_by_role("button", name="Rewind")
    go.click()
    console.text("#toasts", "The conversation has changed meanwhile")
    console.text("#rewind-what", "3 messages will be taken back")
    go.click()

    console.text("#toasts", "3 messages were taken back.")
    # The first message has none before it: it goes to the beginning.
    look, go_on = {"files": True, "dryRun": True}, {"files": False}
    assert played.params_of(REWIND) == [
        {"sessionId": SESSION, **more} for more in (look, look, go_on)
    ]
