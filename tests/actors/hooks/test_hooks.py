"""Hooks are told in order, and nothing they do reaches whoever tells them."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

import attrs
import httpx2
import msgspec
import pytest
import trio
import trio.testing

from greenroom.actors.hooks import (
    MAX_WAITING,
    CommandHook,
    Hook,
    Hooks,
    Webhook,
    check_address,
)
from greenroom.actors.kernel import System, open_system
from greenroom.protocol import (
    HookEvent,
    ItemId,
    MessageId,
    PermissionRequest,
    RunEnd,
    RunId,
    SessionId,
    UserPromptSubmit,
    hook_names,
)

EVERY = frozenset(("user_prompt_submit", "run_end", "permission_request"))


def said(text: str) -> UserPromptSubmit:
    return UserPromptSubmit(
        session_id=SessionId("s"), message_id=MessageId("m"), text=text
    )


def ended(outcome: Any) -> RunEnd:
    return RunEnd(
        session_id=SessionId("s"),
        run_id=RunId("r"),
        message_id=MessageId("m"),
        outcome=outcome,
        reason="complete",
        user_stop=False,
    )


@attrs.define(eq=False)
class Listener:
    name: str = "listener"
    on: frozenset[str] = EVERY
    seconds: float = 5.0
    hangs: bool = False
    raises: bool = False
    gate: trio.Event | None = None
    told: list[HookEvent] = attrs.field(factory=list[HookEvent])

    async def tell(self, event: HookEvent) -> None:
        if self.hangs:
            await trio.sleep_forever()
        if self.gate is not None:
            await self.gate.wait()
        if self.raises:
            raise RuntimeError("no")
        self.told.append(event)


def start(system: System, *hooks: Hook) -> Hooks:
    return Hooks.start(hooks, system.supervisor("hooks").spawn)


async def test_each_hook_is_told_what_it_wants_in_order() -> None:
    every, ends = Listener(), Listener(on=frozenset({"run_end"}))
    async with open_system() as system:
        tell = start(system, every, ends)
        events = [said("a"), ended("completed"), said("b")]
        for event in events:
            tell(event)
        await trio.testing.wait_all_tasks_blocked()

        assert every.told == events
        assert ends.told == [events[1]]


async def test_a_hook_that_hangs_or_raises_holds_up_nobody(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    hanging, raising, good = Listener(hangs=True), Listener(raises=True), Listener()
    with caplog.at_level(logging.WARNING, "greenroom.hooks"):
        async with open_system() as system:
            tell = start(system, hanging, raising, good)
            began = trio.current_time()
            tell(said("a"))
            tell(said("b"))
            assert trio.current_time() == began
            await trio.sleep(11)

            assert [len(h.told) for h in (hanging, raising, good)] == [0, 0, 2]
    assert caplog.text.count("more than 5 s") == 2
    assert caplog.text.count("RuntimeError: no") == 2


async def test_what_a_slow_hook_has_not_been_told_is_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = trio.Event()
    slow = Listener(gate=gate)
    with caplog.at_level(logging.WARNING, "greenroom.hooks"):
        async with open_system() as system:
            tell = start(system, slow)
            await trio.testing.wait_all_tasks_blocked()
            tell(said("first"))
            await trio.testing.wait_all_tasks_blocked()
            for number in range(MAX_WAITING + 50):
                tell(said(str(number)))
            gate.set()
            await trio.testing.wait_all_tasks_blocked()
            tell(said("last"))
            await trio.testing.wait_all_tasks_blocked()

    assert len(slow.told) <= MAX_WAITING + 2
    assert slow.told[-1] == said("last")
    assert "events are left out" in caplog.text


async def test_what_waits_when_the_engine_stops_is_still_told() -> None:
    gate = trio.Event()
    slow = Listener(gate=gate)
    async with open_system() as system:
        tell = start(system, slow)
        await trio.testing.wait_all_tasks_blocked()
        for name in "abc":
            tell(said(name))
        gate.set()
    tell(said("too late"))

    assert slow.told == [said("a"), said("b"), said("c")]


@pytest.mark.parametrize(
    ("event", "groups"),
    [
        (ended("completed"), {"run_end", "finished"}),
        (ended("error"), {"run_end", "failed"}),
        (ended("aborted"), {"run_end", "failed"}),
        (ended("paused"), {"run_end"}),
        (
            PermissionRequest(
                session_id=SessionId("s"),
                run_id=RunId("r"),
                message_id=MessageId("m"),
                interaction_id=ItemId("i"),
                origin="question",
                title="which?",
            ),
            {"permission_request", "needs_you"},
        ),
    ],
)
def test_an_event_is_in_the_groups_a_person_thinks_in(
    event: HookEvent, groups: set[str]
) -> None:
    assert hook_names(event) == groups


#### Programs


def script(body: str) -> tuple[str, ...]:
    return (sys.executable, "-c", body)


async def test_a_program_reads_the_event_and_gets_no_key(tmp_path: Path) -> None:
    out = tmp_path / "out"
    body = (
        "import json, os, sys; event = json.load(sys.stdin);"
        f"open({str(out)!r}, 'w').write(json.dumps([event, dict(os.environ)]))"
    )
    environment = dict(os.environ) | {"GREENROOM_API_KEY": "secret"}
    hook = CommandHook(script(body), EVERY, environment=environment)

    await hook.tell(said("hello"))

    event, seen = msgspec.json.decode(out.read_bytes())
    assert (event["type"], event["text"]) == ("user_prompt_submit", "hello")
    assert seen["GREENROOM_HOOK"] == "user_prompt_submit"
    assert "GREENROOM_API_KEY" not in seen


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (script("raise SystemExit(3)"), "code 3"),
        (("/no/such/program",), "can't be started"),
    ],
)
async def test_a_program_that_fails_says_why(
    command: tuple[str, ...], says: str
) -> None:
    with pytest.raises(Exception, match=says):
        await CommandHook(command, EVERY).tell(said("x"))


async def test_a_program_that_reads_nothing_is_no_failure() -> None:
    await CommandHook(script("pass"), EVERY).tell(said("x" * 1_000_000))


async def test_a_program_that_is_cancelled_is_ended_with_its_children(
    tmp_path: Path,
) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    body = (
        "import os, subprocess, time;"
        f"end = os.open({str(fifo)!r}, os.O_WRONLY); os.set_inheritable(end, True);"
        "subprocess.Popen(['sleep', '600'], close_fds=False);"
        "os.write(end, b'up'); time.sleep(600)"
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(CommandHook(script(body), EVERY).tell, said("x"))
        stream = await trio.Path(fifo).open("rb", buffering=0)
        assert await stream.read(2) == b"up"
        nursery.cancel_scope.cancel()

    # The pipe ends when the last process that holds it has.
    async with stream:
        with trio.fail_after(10):
            assert await stream.read(1) == b""


#### Addresses


async def test_an_address_is_posted_to_once_with_its_token() -> None:
    requests: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return httpx2.Response(302, headers={"location": "http://elsewhere"})

    transport = httpx2.MockTransport(answer)
    hook = Webhook("https://example.test/x", EVERY, token="t0k", transport=transport)
    await hook.tell(said("hello"))

    (request,) = requests
    assert request.headers["authorization"] == "Bearer t0k"
    assert msgspec.json.decode(request.content)["text"] == "hello"
    assert "t0k" not in repr(hook)


async def test_an_address_that_refuses_is_a_failure_without_the_path() -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(500))
    hook = Webhook("https://example.test/secret", EVERY, transport=transport)

    with pytest.raises(Exception, match="500") as caught:
        await hook.tell(said("x"))
    assert "secret" not in f"{caught.value} {hook.name}"


@pytest.mark.parametrize(
    "address", ["", "file:///etc/passwd", "ftp://x", "http://", "https://a:b@x/"]
)
def test_what_is_no_plain_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="address"):
        check_address(address)
