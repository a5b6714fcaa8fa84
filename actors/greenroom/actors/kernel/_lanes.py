"""What waits for an actor: two lanes of mail, the asks that are open, who waits.

Plain lists swapped out whole, no channel, no lock. Everything is synchronous and
runs on the trio loop's thread. The rules of this module:

* *Control* overtakes *work* and is never refused; it is bounded because senders
  give a key and one message a key is queued (the first), or because there is at most
  one such message (a reply, an exit).
* *Work* is bounded by ``capacity``. What the reader has taken no longer counts, so
  at most twice the capacity is alive: one list queued and one in hand.
* A lane that is a list, even an empty one, means that the reader knows; a lane that
  is ``None`` means that the next message must wake it.
* Senders that wait for room exist only while the lane is full. They are let in, in
  order, when the reader takes the list.
* Each open ask is in ``asks`` of the actor asked, and of the actor that asked with
  ``ask_nowait``. Whoever exits first settles it, so nobody waits for the dead.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar, cast, final

import attrs
import msgspec
import outcome
import trio

from greenroom.protocol import InternalError

from ._errors import ActorExitedError
from ._messages import Request

R = TypeVar("R")


class Empty(Enum):
    """What `Lanes.next` returns when no mail waits (mail may be ``None``)."""

    EMPTY = "empty"


EMPTY: Final = Empty.EMPTY


class Waker(Protocol):
    """Somebody to wake once."""

    def wake(self) -> None: ...


@final
class Sleeper:
    """A parked task, as something to wake."""

    __slots__ = ("task",)

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.task = task

    def wake(self) -> None:
        trio.lowlevel.reschedule(self.task)


# Structs, not attrs or plain classes: an ask makes two or three of these, and others
# cost two to four times as much to build.
@final
class ReplySlot(msgspec.Struct, Generic[R], eq=False):
    """Where the answer to one ask goes, once.

    Answering twice is an `InternalError`. Answering when the asker has given up, or
    after the actor asked has exited, does nothing.
    """

    asked: Lanes
    """The kernel's: the mail of the actor that was asked."""
    # Exactly one of `_task` (ask) and `_back` (ask_nowait) is set while open.
    _task: trio.lowlevel.Task | None
    _back: Lanes | None = None
    _tag: object = None
    _closed: bool = False
    abandoned: bool = False
    """Whether the asker has given up. Work for it may be dropped."""

    def set_value(self, value: R) -> None:
        """Answer with *value*."""
        self._settle(outcome.Value(value))

    def set_error(self, error: BaseException) -> None:
        """Answer with *error*: the asker's ``ask`` raises it."""
        self._settle(outcome.Error(error))

    def capture(self, fn: Callable[..., R], *args: object) -> None:
        """Answer with what ``fn(*args)`` returns or raises."""
        self._settle(outcome.capture(fn, *args))

    def _settle(self, result: outcome.Outcome[R]) -> None:
        if self._closed:
            return
        task, back = self._task, self._back
        if task is not None:
            self._task = None
            self.asked.settled(self)
            trio.lowlevel.reschedule(task, result)
        elif back is not None:
            self._back = None
            self.asked.settled(self)
            back.settled(self)
            back.push(Reply(self._tag, result))
        else:
            raise InternalError("this ask was answered already; answer an ask once")

    def refuse(self, error: ActorExitedError) -> None:
        """The kernel's: answer with *error*, and ignore answers from now on."""
        self._settle(outcome.Error(error))
        self._closed = True

    def abandon(self) -> None:
        """The kernel's: the asker is gone. Tell the actor if it has seen the ask."""
        back = self._back
        self._task = self._back = None
        self._closed = self.abandoned = True
        asked = self.asked
        asked.settled(self)
        if back is not None:
            back.settled(self)
        if not asked.forget(self):
            asked.push(AskAbandoned(self))

    def give_up(self, _: Callable[[], object]) -> trio.lowlevel.Abort:
        """The kernel's: the asking task was cancelled."""
        self.abandon()
        return trio.lowlevel.Abort.SUCCEEDED


@final
class Ask(msgspec.Struct, Generic[R], frozen=True, eq=False):
    """A request that waits for its answer in ``reply``: work mail."""

    request: Request[R]
    reply: ReplySlot[R]


@final
class Reply(msgspec.Struct, frozen=True, eq=False):
    """The answer to ``ask_nowait(..., tag=tag)``: control mail to the asker."""

    tag: object
    outcome: outcome.Outcome[Any]


@final
class AskAbandoned(msgspec.Struct, frozen=True, eq=False):
    """Whoever asked for ``reply`` gave up: control mail to the actor asked.

    Sent only for asks that the actor has taken; one that still waits in its mailbox
    is taken out instead.
    """

    reply: ReplySlot[Any]


@final
@attrs.define(eq=False)
class Sender:
    """A task that waits for room, with what it wants to say."""

    message: object
    task: trio.lowlevel.Task


@final
class Lanes:
    """The mail of one actor. The fields belong to the kernel."""

    __slots__ = (
        "asks",
        "capacity",
        "closed",
        "control",
        "current",
        "hand",
        "keys",
        "reader",
        "senders",
        "urgent",
        "work",
    )

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.closed = False
        self.work: list[object] | None = None
        self.control: list[object] | None = None
        # The keys of the coalesced messages in `control`.
        self.keys: set[Hashable] | None = None
        # What the reader took and has not handled yet, newest first: it pops.
        self.hand: list[object] | None = None
        self.urgent: list[object] | None = None
        # Set while the reader sleeps.
        self.reader: Waker | None = None
        self.senders: dict[Sender | Ask[Any], None] | None = None
        # Asks that are open, of this actor and by it.
        self.asks: set[ReplySlot[Any]] | None = None
        # The type of the message being handled.
        self.current: type | None = None

    def opened(self, slot: ReplySlot[Any]) -> None:
        if self.asks is None:
            self.asks = {slot}
        else:
            self.asks.add(slot)

    def settled(self, slot: ReplySlot[Any]) -> None:
        if self.asks is not None:
            self.asks.discard(slot)

    #### Sending

    def put(self, message: object) -> bool:
        """Queue work if there is room and somebody will read it."""
        work = self.work
        if work is not None:
            if len(work) >= self.capacity:
                return False
            work.append(message)
            return True
        if self.closed:
            return False
        self.work = [message]
        if (reader := self.reader) is not None:
            self.reader = None
            reader.wake()
        return True

    def wait_for_room(self, item: Sender | Ask[Any]) -> None:
        """Queue *item* among those who wait for room. The lane must be full."""
        if self.senders is None:
            self.senders = {}
        self.senders[item] = None

    def push(self, message: object) -> None:
        """Queue control mail; nothing happens when the actor has exited."""
        control = self.control
        if control is not None:
            control.append(message)
        elif not self.closed:
            self.control = [message]
            if (reader := self.reader) is not None:
                self.reader = None
                reader.wake()

    def push_once(self, message: object, key: Hashable) -> None:
        """Queue control mail unless one of the same *key* is queued."""
        if self.closed or (self.keys and key in self.keys):
            return
        if self.keys is None:
            self.keys = {key}
        else:
            self.keys.add(key)
        self.push(message)

    def wake(self) -> None:
        """Wake the reader if it sleeps."""
        reader = self.reader
        if reader is not None:
            self.reader = None
            reader.wake()

    #### Receiving

    def has_mail(self) -> bool:
        return bool(self.urgent or self.control or self.hand or self.work)

    def next(self) -> object:
        """Take the next message, control first, or `EMPTY`."""
        if self.urgent:
            return self.urgent.pop()
        if self.control:
            self.urgent = self._take_control()
            return self.urgent.pop()
        if self.hand:
            return self.hand.pop()
        work = self.work
        if not work:
            return EMPTY
        self.work = None
        if self.senders:
            self.admit()
        work.reverse()
        self.hand = work
        return work.pop()

    def next_batch(self) -> list[object]:
        """Take all mail, control first."""
        batch = self.urgent or []
        batch.reverse()
        self.urgent = None
        if self.control:
            batch += self.control
            self.control = self.keys = None
        if self.hand:
            self.hand.reverse()
            batch += self.hand
            self.hand = None
        work = self.work
        if not work:
            return batch
        self.work = None
        if self.senders:
            self.admit()
        return batch + work if batch else work

    def rest(self, reader: Waker) -> None:
        """The reader sleeps: wake it at the next message. No mail may wait."""
        self.urgent = self.hand = self.control = self.work = self.keys = None
        self.current = None
        self.reader = reader

    def _take_control(self) -> list[object]:
        control = self.control or []
        self.control = self.keys = None
        control.reverse()
        return control

    def admit(self) -> None:
        """Let those in who wait for room, in order, as far as there is room."""
        senders = self.senders or {}
        room = self.capacity - len(self.work or ())
        for sender in list(senders)[:room]:
            del senders[sender]
            if isinstance(sender, Sender):
                self.put(sender.message)
                trio.lowlevel.reschedule(sender.task)
            else:
                self.put(sender)

    #### Taking back and closing

    def forget(self, slot: ReplySlot[Any]) -> bool:
        """Take the ask of *slot* out, if the reader has not had it yet."""
        if self.senders and (ask := _find(self.senders, slot)) is not None:
            del self.senders[ask]
            return True
        if self.work and (ask := _find(self.work, slot)) is not None:
            self.work = [message for message in self.work if message is not ask]
            self.admit()
            return True
        if self.hand and (ask := _find(self.hand, slot)) is not None:
            self.hand = [message for message in self.hand if message is not ask]
            return True
        return False

    def withdraw(self, message: object, key: Hashable) -> None:
        """Take control mail equal to *message* back, if it was not read yet."""
        if self.keys:
            self.keys.discard(key)
        for lane in (self.control, self.urgent):
            for index, queued in enumerate(lane or ()):
                if lane and type(queued) is type(message) and queued == message:
                    del lane[index]
                    return

    def holds(self, kind: type) -> bool:
        """Whether control mail of *kind* waits unread."""
        if not self.urgent and not self.control:
            return False
        waiting = (*(self.urgent or ()), *(self.control or ()))
        return any(type(message) is kind for message in waiting)

    def depth(self) -> tuple[int, int]:
        """How much work and how much control mail waits, taken or not."""
        work = len(self.work or ()) + len(self.hand or ())
        return work, len(self.control or ()) + len(self.urgent or ())

    def close(self, error: Callable[[], ActorExitedError]) -> int:
        """Refuse all from now on; settle all asks; return how many tells are left."""
        left = 0
        if self.hand or self.work:
            unread = (*(self.hand or ()), *(self.work or ()))
            left = sum(not isinstance(message, Ask) for message in unread)
        senders, asks = self.senders, self.asks
        self.closed = True
        self.urgent = self.hand = self.control = self.work = self.keys = None
        self.reader = self.senders = self.asks = self.current = None
        for sender in senders or ():
            if isinstance(sender, Sender):
                trio.lowlevel.reschedule(sender.task, outcome.Error(error()))
        for slot in asks or ():
            if slot.asked is self:
                slot.refuse(error())
            else:
                slot.abandon()
        return left


def _find(lane: Iterable[object], slot: ReplySlot[Any]) -> Ask[Any] | None:
    for message in lane:
        if isinstance(message, Ask):
            ask = cast("Ask[Any]", message)
            if ask.reply is slot:
                return ask
    return None
