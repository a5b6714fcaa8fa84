"""Who may do what in the console, and names that want to be more than names."""

from __future__ import annotations

from typing import Any, Final

from kit.console_wire import SESSION, SETTINGS, message, snapshot

HOSTILE: Final = "<img src=//evil.example/x onerror=owned()><b>N</b> \u202egnp.exe"
NAMED: Final = HOSTILE.replace("\u202e", "\u27e8U+202E\u27e9")


def agent(name: str, **more: Any) -> dict[str, Any]:
    """Return an agent as the list has it."""
    told = {"kind": "native", "enabled": True, "description": "", "unavailable": None}
    return {"id": name.lower(), "name": name, **told, **more}


def permission(**more: Any) -> dict[str, Any]:
    """Return a permission that waits in message 2."""
    block = {"type": "action", "id": "m2.9", "toolBlockId": "m2.8", "title": "write a"}
    block |= {"action": "tool_call_permission", "origin": "pre-check-permission"}
    tool = {"type": "tool_call", "id": "m2.8", "callId": "c", "name": "write"}
    tool |= {"arguments": "{}", **more}
    return {"sessionId": SESSION, "messageId": "m2", "block": block, "tool": tool}


def waiting(_: dict[str, Any]) -> dict[str, Any]:
    """Answer an attach: something waits for an answer, and something for its turn."""
    parts = [{"type": "text", "text": "later"}]
    row = {"id": "i1", "mode": "queue", "state": "pending", "order": 1, "parts": parts}
    told = snapshot([message(1), message(2)], interactions=[permission()])
    told["snapshot"]["inputs"] = [{**row, "createdAt": 1.0, "updatedAt": 1.0}]
    return told


def test_a_session_is_given_to_another_agent_of_those_that_can_take_it(
    open_played: Any,
) -> None:
    def agents(asked: dict[str, Any]) -> dict[str, Any]:
        if "after" in asked:
            return {"agents": [agent("Broken", unavailable="its row can't be read")]}
        known = [agent("Default"), agent("Writer"), agent("Away", enabled=False)]
        return {"agents": [*known, agent("Foreign", kind="acp")], "next": "foreign"}

    moved = {"settings": {**SETTINGS, "agentId": "writer"}}
    console, played = open_played(agent__list=agents, session__move=lambda _: moved)
    rows = console.page.locator(".agents li")
    console.page.locator("#tab-agents").click()

    console.text(".agents li", "its row can't be read")
    states = rows.evaluate_all("all => all.map((each) => each.dataset.state)")
    assert states == ["ready", "ready", "off", "ready", "unavailable"]
    assert rows.filter(has_text="this session's").inner_text().startswith("Default")
    offers = rows.get_by_role("button", name="Give it this session")
    assert offers.count() == 1
    offers.press("Enter")
    console.text(".agents button:focus", "Give it this session: sure?")
    assert played.params_of("session/move") == []
    console.page.keyboard.press("Enter")

    console.text("#toasts", "The session is one of Writer now.")
    assert played.params_of("session/move") == [
        {"sessionId": SESSION, "agent": "writer"}
    ]
    changed = {"type": "session/updated", "seq": 101, "settings": moved["settings"]}
    played.tell(changed)
    console.text('.agents li[data-own="true"]', "Writer")


def test_a_token_that_may_only_read_is_offered_nothing_that_it_can_not_do(
    open_played: Any,
) -> None:
    reader = {"clientId": "c", "scopes": ["read"], "resumed": False}
    console, played = open_played(
        authenticate=lambda _: reader,
        session__attach=waiting,
        agent__list=lambda _: {"agents": [agent("Default"), agent("Writer")]},
    )
    page = console.page
    console.text(".ask", "This token may only read")
    console.text("#inbox", "later")

    page.keyboard.press("Escape")
    for key in ("n", "a", "x", "Control+."):
        page.keyboard.press(key)
    for tab in ("agents", "settings"):
        page.locator(f"#tab-{tab}").click()
        console.text("#panel", {"agents": "Writer", "settings": "may only read"}[tab])
        offered = page.locator("#panel button, #panel select:enabled").all()
        assert [each.inner_text() for each in offered] == []
    allowed = page.locator("#stage, #sidebar").get_by_role("button").all()
    assert {each.get_attribute("aria-label") for each in allowed} - {None} == {
        "Search messages",
        "Inspector",
        "Keyboard shortcuts",
    }
    assert page.locator("#composer button:visible").count() == 0
    assert not page.locator("#new-dialog").is_visible()
    assert {method for method, _ in played.asked} <= {
        "authenticate",
        "session/list",
        "session/attach",
        "journal",
        "agent/list",
    }


def test_names_errors_paths_and_arguments_are_text_wherever_they_stand(
    open_played: Any,
) -> None:
    def attach(_: dict[str, Any]) -> dict[str, Any]:
        picture = "data:image/svg+xml,<svg onload=owned()>"
        diff = {"path": f"/work/{HOSTILE}", "newText": HOSTILE, "oldText": "x"}
        tool = {"type": "tool_call", "callId": "c", "name": HOSTILE, "diffs": [diff]}
        tool |= {"arguments": f'{{"<b>": "{picture}"}}', "response": HOSTILE}
        said = f"[x](javascript:owned()) [y](data:,z) ![z]({picture})\n{HOSTILE}"
        image = {"type": "image"}
        blocks = [
            {"type": "text", "id": "m2.0", "text": said},
            {**tool, "id": "m2.1", "status": "error", "title": HOSTILE},
            {
                "type": "image",
                "id": "m2.2",
                "mediaType": "image/svg+xml",
                "data": "PHN=",
            },
            {**image, "id": "m2.3", "mediaType": "image/png", "data": '"><b>'},
            {"type": "error", "id": "m2.4", "code": HOSTILE, "text": HOSTILE},
        ]
        metadata = {"runOutcome": "error", "errorText": HOSTILE, "model": HOSTILE}
        reply = message(2, blocks=blocks, metadata=metadata, status="error")
        asked = permission(name=HOSTILE, diffs=[diff], arguments=tool["arguments"])
        asked["block"] |= {"title": HOSTILE, "detail": HOSTILE}
        return snapshot([message(1, HOSTILE), reply], interactions=[asked])

    actor = {"path": f"sessions/{HOSTILE}", "grade": "task", "state": HOSTILE, "age": 1}
    entry = {"seq": 1, "at": 1, "kind": "dispatch", "runId": HOSTILE, "tool": HOSTILE}
    hostile = agent(HOSTILE, id=HOSTILE, description=HOSTILE, unavailable=HOSTILE)
    console, _ = open_played(
        session__attach=attach,
        agent__list=lambda _: {"agents": [hostile]},
        tree=lambda _: {"actors": [actor]},
        journal=lambda _: {"entries": [entry, {**entry, "kind": HOSTILE, "seq": 2}]},
    )
    page = console.page

    console.text(".error.block", NAMED)
    console.text(".tool", NAMED)
    console.text(".diff .path", NAMED)
    console.text(".ask", NAMED)
    console.text(".message.assistant footer", f"failed: {NAMED}")
    for tab, place in (("journal", ".what"), ("actors", ".doing"), ("agents", "h3")):
        page.locator(f"#tab-{tab}").click()
        console.text(f"#panel {place}", "N")
    console.text("#panel", NAMED)
    made = page.locator("#frame").locator("img, script, style, iframe, b, [onerror]")
    assert made.count() == 0
    assert page.locator("#frame a").count() == 0
    shown = page.locator("body").inner_text()
    assert "\u202e" not in shown
    assert "[object" not in shown
