"""References: what one actor may hold of another.

All methods run on the thread of the trio loop, from actors and from plain tasks
alike. A reference stays valid for ever; after the actor's exit it answers with the
exit reason. An actor that is restarted is a new actor with a new reference.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

import outcome
import trio

from ._errors import ActorExitedError, MailboxFullError
from ._lanes import Ask, Reply, ReplySlot, Sender
from ._messages import CancelCause, ExitReason, Request

if TYPE_CHECKING:
    from ._cell import Cell

M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R")


@final
class Ref(Generic[M_contra]):
    """A reference to an actor of either grade. Equal references mean one actor."""

    __slots__ = ("_cell", "_lanes")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._lanes = cell.lanes

    def __repr__(self) -> str:
        state = self._cell.reason or self._cell.phase.name.lower()
        return f"<Ref {self.path!r} {state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other._cell is self._cell

    def __hash__(self) -> int:
        return hash(self._cell)

    @property
    def path(self) -> str:
        """Where the actor is in the tree, names joined by ``/``."""
        return self._cell.path

    @property
    def exited(self) -> bool:
        """Whether the actor has exited (its children too)."""
        return self._cell.reason is not None

    @property
    def exit_reason(self) -> ExitReason | None:
        """How the actor ended; ``None`` while it lives."""
        return self._cell.reason

    #### Telling

    def tell_nowait(self, message: M_contra) -> None:
        """Queue *message* as work.

        Raises:
            MailboxFullError: the work lane holds ``capacity`` messages.
            ActorExitedError: the actor reads no more mail.
        """
        lanes = self._lanes
        work = lanes.work
        if work is not None and len(work) < lanes.capacity:
            work.append(message)
        elif not lanes.put(message):
            raise self._refusal()

    async def tell(self, message: M_contra) -> None:
        """Queue *message* as work, waiting for room.

        Not a checkpoint while there is room. When it waits and is cancelled, the
        message was not queued; senders are let in in the order they came. Raises
        `ActorExitedError` at once, or when the actor exits meanwhile.
        """
        lanes = self._lanes
        if lanes.put(message):
            return
        if lanes.closed:
            raise self._refusal()
        sender = Sender(message, trio.lowlevel.current_task())
        lanes.wait_for_room(sender)

        def abort(_: object) -> trio.lowlevel.Abort:
            if lanes.senders is not None:
                lanes.senders.pop(sender, None)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def tell_control(self, message: object, *, key: Hashable) -> None:
        """Queue *message* as control mail: it overtakes work and is never refused.

        While a message of the same *key* waits, the first wins and this one is
        dropped, so the lane holds at most one message a key. Nothing happens when
        the actor has exited.
        """
        self._lanes.push_once(message, key)

    #### Asking

    async def ask(self, request: Request[R]) -> R:
        """Send *request* and wait for the reply.

        Waits for room in the mailbox first. Never hangs: raises `ActorExitedError`
        with the exit reason when the actor has exited or does so before it answers.
        When the asker is cancelled, an ask that still waits in the mailbox is taken
        out of it; if the actor has it already, it is told with `AskAbandoned`.
        """
        lanes = self._lanes
        slot: ReplySlot[R] = ReplySlot(lanes, trio.lowlevel.current_task())
        ask = Ask(request, slot)
        if not lanes.put(ask):
            if lanes.closed:
                await trio.lowlevel.checkpoint()
                raise self._refusal()
            lanes.wait_for_room(ask)
        lanes.opened(slot)
        return await trio.lowlevel.wait_task_rescheduled(slot.give_up)

    def ask_nowait(
        self, request: Request[R], *, reply_to: Ref[Any], tag: object
    ) -> None:
        """Send *request*; *reply_to* gets exactly one `Reply` with *tag* as mail.

        For hosted actors, which never wait. When the actor exits before it answers,
        or has exited already, the reply carries `ActorExitedError`. When *reply_to*
        exits first, the actor asked is told with `AskAbandoned`. Raises
        `MailboxFullError` when the work lane is full.
        """
        lanes, back = self._lanes, reply_to._lanes
        if lanes.closed:
            back.push(Reply(tag, outcome.Error(self._refusal())))
            return
        if back.closed:  # nobody is left who wants to know
            return
        slot: ReplySlot[R] = ReplySlot(lanes, None, back, tag)
        if not lanes.put(Ask(request, slot)):
            raise self._refusal()
        lanes.opened(slot)
        back.opened(slot)

    #### Watching and ending

    def watch(self, watcher: Ref[Any]) -> None:
        """Have *watcher* told of this actor's exit, by exactly one `Exited`.

        Watching again before the exit adds nothing. When the actor has exited
        already, *watcher* is told at once.
        """
        self._cell.watch(watcher)

    def unwatch(self, watcher: Ref[Any]) -> None:
        """Undo `watch`. An `Exited` that was queued already stays queued."""
        if self._cell.watchers is not None:
            self._cell.watchers.pop(watcher, None)

    async def wait_exited(self) -> ExitReason:
        """Wait until the actor and its children have exited; for any task."""
        return await self._cell.wait_exited()

    async def wait_started(self) -> None:
        """Wait until the actor is published: `Started` handled, set-up done.

        Raises `ActorExitedError` (its cause is the failure) if it exits before.
        """
        await self._cell.wait_started()

    def stop(self, cause: CancelCause) -> None:
        """Ask the actor to end: one `Stop` as control mail. The first cause wins."""
        self._cell.stop(cause)

    def cancel(self, cause: CancelCause, *, within: float | None = None) -> None:
        """Kill the actor: record *cause* (the first wins), then cancel its scope.

        The actor settles itself; the canceller writes nothing. All its cleanup,
        its children's included, ends *within* seconds (5 by default). An actor that
        has not run yet exits without running. A hosted actor stops now, or after
        the message it is handling.
        """
        self._cell.cancel(cause, within)

    def _refusal(self) -> ActorExitedError | MailboxFullError:
        if self._lanes.closed:
            return self._cell.exited_error()
        return MailboxFullError(self.path, self._lanes.capacity)


def cell_of(ref: Ref[Any]) -> Cell:
    """The kernel's: the actor behind *ref*."""
    return ref._cell  # pyright: ignore[reportPrivateUsage] - same module, by design
