"""What clients do with one session has its effects in the order in which it came."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import permutations
from random import Random
from typing import Any, Final

import attrs
import msgspec
import pytest
import trio
from kit.rehearsal import Stage, open_stage, replies
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.sessions import SessionHandle
from greenroom.actors.sessions._messages import (
    ChangeInputs,
    ChangeSettings,
    EditInput,
    MoveInput,
    Prompt,
    PutIn,
)
from greenroom.actors.sessions._unread import Unread
from greenroom.protocol import (
    ImagePart,
    Parts,
    PendingInput,
    SessionSettings,
    TapeEntry,
    TextPart,
)
from greenroom.testing import Halt, Say

PICTURE: Final = (TextPart("see"), ImagePart("image/png", "aWNvbg=="))
DONE: Final = [Say("done"), Halt()]

Deed = Callable[[SessionHandle], Awaitable[object]]

DEEDS: Final[dict[str, Deed]] = {
    "send": lambda session: session.prompt("sent", command_id="sent"),
    "steer": lambda session: session.steer("steered", command_id="steered"),
    "edit": lambda session: session.edit_input("first", "edited"),
    "retry": lambda session: session.retry_input("blocked"),
    "move": lambda session: session.move_input("second", 1),
    "policy": lambda session: session.configure(permission_mode="full_access"),
}

EFFECTS: Final[dict[str, Callable[[PendingInput], bool]]] = {
    "send": lambda row: row.id == "sent",
    "steer": lambda row: row.id == "steered",
    "edit": lambda row: row.parts == (TextPart("edited"),),
    "retry": lambda row: (row.id, row.state) == ("blocked", "pending"),
    "move": lambda row: (row.id, row.order) == ("second", 1),
}
"""What the first row that each writes says, and none before it."""


def name_of(request: object) -> str:
    match request:
        case Prompt():
            return "send"
        case PutIn():
            return "steer"
        case ChangeInputs(step=EditInput()):
            return "edit"
        case ChangeInputs(step=MoveInput()):
            return "move"
        case ChangeInputs():
            return "retry"
        case ChangeSettings():
            return "policy"
        case _:
            raise AssertionError(request)


@attrs.define(eq=False)
class SlowRecord:
    """A session's record whose writes take long, the later the less."""

    inner: Any
    seconds: float = 64.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def append(self, *args: Any, **kwargs: Any) -> None:
        self.seconds /= 2
        await trio.sleep(self.seconds)
        await self.inner.append(*args, **kwargs)


def blocks_images(parts: Parts, settings: SessionSettings) -> tuple[str, ...]:
    return ("none is read",) if any(isinstance(p, ImagePart) for p in parts) else ()


def use_ports(stage: Stage, **changes: Any) -> None:
    loaded = stage.session._sessions.loaded(stage.session.id)
    assert loaded is not None
    session = loaded.session
    session.ports = attrs.evolve(session.ports, **changes)


async def prepare(stage: Stage) -> int:
    """Bring a session to where each deed can be done; returns its head."""
    use_ports(stage, attachments=blocks_images)
    await stage.session.queue(PICTURE, command_id="blocked")
    for name in ("first", "second"):
        await stage.session.queue(name, command_id=name)
    rows = {row.id: row.state for row in await stage.session.inputs()}
    assert rows == {"blocked": "blocked", "first": "pending", "second": "pending"}
    return len(stage.tape())


@contextmanager
def arrivals() -> Iterator[list[str]]:
    """Note what is put into the mailbox, in that order."""
    seen, inner = list[str](), Unread.sending

    def sending(unread: Unread, request: object) -> Any:
        seen.append(name_of(request))
        return inner(unread, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Unread, "sending", sending)
        yield seen


def effects(tape: Sequence[TapeEntry]) -> list[str]:
    """Return whose effects there are, in the order of the tape."""
    found: dict[str, int] = {}
    for entry in tape:
        if entry.fact.name == "session/configured":
            found.setdefault("policy", entry.seq)
        elif entry.fact.name == "input/recorded":
            row = msgspec.json.decode(entry.fact.payload, type=PendingInput)
            for name, is_effect in EFFECTS.items():
                if is_effect(row):
                    found.setdefault(name, entry.seq)
    return sorted(found, key=lambda name: found[name])


def some_orders() -> list[tuple[str, ...]]:
    # Each deed is the first one at least once.
    every = list(permutations(DEEDS))
    return [every[at] for at in range(0, len(every), 121)] + Random(0).sample(every, 2)


@pytest.mark.contract("SES-17")
@pytest.mark.parametrize("order", some_orders(), ids="-".join)
async def test_effects_follow_arrival_and_another_session_goes_on(
    tmp_path, mock_clock: MockClock, order
):
    async with (
        open_stage(tmp_path, replies(*[DONE] * 9)) as stage,
        trio.open_nursery() as nursery,
    ):
        other = await stage.engine.create_session(workspace=tmp_path)
        head = await prepare(stage)
        record = stage.session._sessions._loaded[stage.session.id].session.ports.record
        use_ports(stage, record=SlowRecord(record))
        clients = [stage.engine.session(stage.session.id) for _ in range(2)]
        with arrivals() as arrived:
            for number, name in enumerate(order):
                nursery.start_soon(DEEDS[name], clients[number % 2])
                # Some come one by one, some together.
                if number % 3:
                    await wait_all_tasks_blocked()
            await wait_all_tasks_blocked()
        assert sorted(arrived) == sorted(DEEDS)
        # Not one of them is done yet, and that holds up nobody else.
        assert len(stage.tape()) == head
        assert (await other.prompt("meanwhile")).outcome == "completed"
        assert len(stage.tape()) == head
        for _ in range(3 * len(DEEDS)):
            mock_clock.jump(32)
            await wait_all_tasks_blocked()
        assert effects(stage.tape()[head:]) == arrived
        mock_clock.autojump_threshold = 0
        nursery.cancel_scope.cancel()
