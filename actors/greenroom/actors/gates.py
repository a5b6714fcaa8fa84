"""Lifecycle gates: what works on something keeps its deletion waiting, and is refused
by it.

One gate for each id, agents' and sessions' apart. An operation goes in and out; a
deletion first refuses further ones, then waits for those inside, within a bound, and
holds the gate shut as long as it works (DEL-02, DEL-07, DEL-08). Nothing of a gate is
left when nobody uses it. Used from one loop; going in never waits.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar, final

import attrs
import trio

from greenroom.protocol import GreenroomError

GATE_SECONDS: Final = 30.0
"""How long a deletion waits for what goes on (DEL-02, DEL-08)."""

T = TypeVar("T")


class BeingDeletedError(GreenroomError):
    """The thing is being deleted and takes nothing more."""

    code = "being_deleted"
    hint = "wait for the deletion to end; if it fails, try again"

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what} {name[:80]!r} is being deleted")


class StillUsedError(GreenroomError):
    """A deletion waited for what goes on, and that did not end; nothing was deleted."""

    code = "still_used"
    hint = "wait for it, or cancel it, and delete again"

    def __init__(self, what: str, name: str, seconds: float) -> None:
        super().__init__(
            f"{what} {name[:80]!r} was still used after {seconds:g} seconds;"
            " it was not deleted"
        )


@attrs.define(eq=False)
class _Gate:
    inside: int = 0
    shut: bool = False
    empty: trio.Event = attrs.field(factory=trio.Event)


@attrs.define(eq=False)
class _Work:
    """What one caller does for all; without an end if that caller was cancelled."""

    done: trio.Event = attrs.field(factory=trio.Event)
    value: Any = None
    error: Exception | None = None
    ended: bool = False


@final
@attrs.define(eq=False)
class Gates:
    """The gates of one kind of thing."""

    _what: str
    """What an id names, for errors: ``agent`` or ``session``."""
    _gates: dict[str, _Gate] = attrs.field(factory=dict[str, _Gate], init=False)
    _works: dict[str, _Work] = attrs.field(factory=dict[str, _Work], init=False)

    def __repr__(self) -> str:
        return f"<Gates of {len(self._gates)} {self._what}s>"

    def check(self, name: str) -> None:
        """Refuse what begins while *name* is being deleted.

        Raises:
            BeingDeletedError: it is.
        """
        gate = self._gates.get(name)
        if gate is not None and gate.shut:
            raise BeingDeletedError(self._what, name)

    @contextmanager
    def operation(self, name: str) -> Generator[None]:
        """Work on *name*; a deletion waits for the end of the block.

        Raises:
            BeingDeletedError: it is being deleted already.
        """
        self.check(name)
        gate = self._gates.setdefault(name, _Gate())
        gate.inside += 1
        try:
            yield
        finally:
            gate.inside -= 1
            if gate.inside == 0:
                gate.empty.set()
                if not gate.shut:
                    del self._gates[name]

    @asynccontextmanager
    async def deletion(
        self, name: str, seconds: float = GATE_SECONDS
    ) -> AsyncGenerator[None]:
        """Hold the gate of *name* shut, once nothing is inside any more.

        Raises:
            BeingDeletedError: a deletion holds it already.
            StillUsedError: something was inside for *seconds*; the gate is open again.
        """
        self.check(name)
        gate = self._gates.setdefault(name, _Gate())
        gate.shut = True
        try:
            if not await _emptied(gate, seconds):
                raise StillUsedError(self._what, name, seconds)
            yield
        finally:
            gate.shut = False
            if gate.inside == 0:
                del self._gates[name]

    async def shared(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return what *work* on *name* gives; who asks meanwhile gets the same.

        Whoever asks first does it. If that one is cancelled, the next one does it.
        """
        while True:
            going = self._works.get(name)
            if going is None:
                return await self._lead(name, work)
            await going.done.wait()
            if going.error is not None:
                raise going.error
            if going.ended:
                return going.value

    async def _lead(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        mine = self._works[name] = _Work()
        try:
            mine.value = value = await work()
            mine.ended = True
        except Exception as exc:
            mine.error = exc
            raise
        else:
            return value
        finally:
            del self._works[name]
            mine.done.set()


async def _emptied(gate: _Gate, seconds: float) -> bool:
    # A gate that is not empty has no set event: it is made anew for each wait.
    with trio.move_on_after(seconds):
        while gate.inside:
            gate.empty = trio.Event()
            await gate.empty.wait()
    return gate.inside == 0
