"""Other ports for the runs of a session that is loaded: fakes behind narrow doors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from kit.rehearsal import Stage


@attrs.define(eq=False)
class ChangedPorts:
    """A session's ports whose runs get some of theirs replaced."""

    inner: Any
    changes: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def for_run(self, *args: Any, **kwargs: Any) -> Any:
        return attrs.evolve(self.inner.for_run(*args, **kwargs), **self.changes)


def change_run_ports(stage: Stage, **changes: Any) -> None:
    """Give the next runs of the loaded session these ports."""
    loaded = stage.session._sessions.loaded(stage.session.id)
    assert loaded is not None
    ports: Any = ChangedPorts(loaded.session.ports, changes)
    loaded.session.ports = ports


@attrs.frozen
class BrokenView:
    """A view that can't be read."""

    error: Exception

    def add_resumed(self, blocks: Any) -> None:
        raise self.error


def break_view(stage: Stage, error: Exception) -> None:
    """Give the next run a view that raises, once it has started."""
    loaded = stage.session._sessions.loaded(stage.session.id)
    assert loaded is not None
    session, left = loaded.session, [error]

    def preparing(step: str | None) -> None:
        if step == "start fact" and left:
            assert session.turn is not None
            assert session.turn.active is not None
            active, view = session.turn.active, BrokenView(left.pop())
            active.plan = attrs.evolve(active.plan, view=view)

    session.ports = attrs.evolve(session.ports, preparing=preparing)


def set_cost(stage: Stage, cost: Callable[..., float | None]) -> None:
    """Have what the loaded session asks models for cost that."""
    loaded = stage.session._sessions.loaded(stage.session.id)
    assert loaded is not None
    loaded.session.ports = attrs.evolve(loaded.session.ports, cost=cost)


def turn_of(stage: Stage) -> Any:
    """Return the turn that the loaded session works on."""
    loaded = stage.session._sessions.loaded(stage.session.id)
    assert loaded is not None
    return loaded.session.turn


@attrs.define(eq=False)
class Window:
    """A context budget that counts the characters of tool results."""

    room: int
    asked: list[int] = attrs.field(factory=list)

    def fits(self, messages: Sequence[Any], tools: Sequence[Any]) -> bool:
        size = sum(len(m.text) for m in messages if hasattr(m, "call_id"))
        self.asked.append(size)
        return size <= self.room


@attrs.define(eq=False)
class FakeReviewer:
    """A reviewer that answers as told and keeps what it was asked."""

    answer: Callable[[Any], Any]
    asked: list[Any] = attrs.field(factory=list)
    conversations: list[Any] = attrs.field(factory=list)

    async def review(self, call: Any, conversation: Any) -> Any:
        self.asked.append(call)
        self.conversations.append(conversation)
        return self.answer(call)
