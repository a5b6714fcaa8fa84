"""What is still to be sent to a client: whole frames, shared by all who get them.

Putting never waits, so nothing that a session does depends on who reads. What many
connections are to be sent is written by one task, the flusher: it takes a step when
anything was put, and then each connection gets all that waits for it in one call to
the operating system, without waiting. Only a connection whose socket is full, or which
is no plain socket, gets a task of its own, until everything is sent.

A client that lets too much pile up is given up: what was not begun is dropped, and its
connection is closed with a code that says so. That is its loss, and nobody else's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, final

import attrs
import trio

MAX_UNSENT_BYTES: Final = 8 << 20
"""Two of the largest frames: what a client that is slow for a moment may be behind."""

MAX_UNSENT_FRAMES: Final = 2_000
"""The same for small ones, of which each costs memory beyond its bytes."""

PIECE_BYTES: Final = 256 << 10
"""What a connection with a task of its own is sent at once, at least one frame."""

TICK_SECONDS: Final = 0.01
"""How far apart two flushes are. The first frame after a pause goes out at once; under
load frames of one connection are joined, and those of many leave together, which keeps
whoever reads them awake: waking costs more than writing."""

_MAX_VECTORS: Final = 512
"""Frames in one call; every POSIX system takes 1024, and joins no more than it has."""


@final
@attrs.define(eq=False)
class Sent:
    """What went out over all connections."""

    frames: int = 0
    bytes: int = 0


@final
@attrs.define(eq=False)
class Flusher:
    """Writes for every connection that has something waiting."""

    nursery: trio.Nursery
    """Where a connection's own task is started."""
    sent: Sent = attrs.field(factory=Sent)
    _dirty: list[FrameOutbox] = attrs.field(factory=list["FrameOutbox"], init=False)
    _parked: trio.lowlevel.Task | None = attrs.field(default=None, init=False)

    async def run(self) -> None:
        """Flush whatever is marked, for ever."""
        while True:
            if not self._dirty:
                await self._park()
            dirty, self._dirty = self._dirty, []
            begun = trio.current_time()
            for outbox in dirty:
                outbox.flush()
            await trio.sleep_until(begun + TICK_SECONDS)

    def mark(self, outbox: FrameOutbox) -> None:
        """Have an outbox flushed soon."""
        self._dirty.append(outbox)
        if self._parked is not None:
            trio.lowlevel.reschedule(self._parked)
            self._parked = None

    async def _park(self) -> None:
        self._parked = trio.lowlevel.current_task()

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._parked = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


def _nobody() -> None:
    pass


@final
@attrs.define(eq=False)
class FrameOutbox:
    """The frames of one connection, in the order in which they were put."""

    stream: trio.abc.Stream
    flusher: Flusher
    on_full: Callable[[], None] = _nobody
    """Called once, when the client has let too much pile up."""
    max_bytes: int = MAX_UNSENT_BYTES
    max_frames: int = MAX_UNSENT_FRAMES
    _socket: trio.socket.SocketType | None = attrs.field(init=False)
    """What can be written to without waiting; ``None``: nothing can."""
    _frames: list[bytes] = attrs.field(factory=list[bytes], init=False)
    _size: int = attrs.field(default=0, init=False)
    """Bytes that were put and not sent, those on their way included."""
    _marked: bool = attrs.field(default=False, init=False)
    _begun: bool = attrs.field(default=False, init=False)
    """The first frame is what is left of one."""
    _writing: bool = attrs.field(default=False, init=False)
    """A task of our own sends; the flusher has nothing to do."""
    _sealed: bool = attrs.field(default=False, init=False)
    _broken: bool = attrs.field(default=False, init=False)
    _changed: trio.Event | None = attrs.field(default=None, init=False)
    """Where somebody waits for room."""

    def __attrs_post_init__(self) -> None:
        stream = self.stream
        self._socket = stream.socket if isinstance(stream, trio.SocketStream) else None

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return self._size

    #### Putting

    def put(self, frame: bytes) -> None:
        """Have a whole frame sent; after `seal` it is dropped."""
        # What every frame of every client goes through, so it calls nothing.
        if self._sealed:
            return
        self._frames.append(frame)
        self._size += len(frame)
        if not self._marked:
            self._mark()
        if self._size > self.max_bytes or len(self._frames) > self.max_frames:
            self.drop()
            self._sealed = True
            self.on_full()

    def put_last(self, frame: bytes) -> None:
        """Have a frame sent that nothing may follow, full or not."""
        self._add(frame)
        self._sealed = True

    def seal(self) -> None:
        """Take no more frames, but for a last one."""
        self._sealed = True

    def drop(self) -> None:
        """Drop every frame of which nothing was sent."""
        kept = self._frames[: 1 if self._begun else 0]
        self._size -= sum(map(len, self._frames[len(kept) :]))
        self._frames = kept

    def _add(self, frame: bytes) -> None:
        if self._broken:
            return
        self._frames.append(frame)
        self._size += len(frame)
        self._mark()

    def _mark(self) -> None:
        if not self._marked and not self._writing:
            self._marked = True
            self.flusher.mark(self)

    #### Waiting

    async def room(self) -> None:
        """Return when no more than half of what may wait does; at once if that is so.

        Also when nothing is taken any more.
        """
        while not self._sealed and (
            self._size > self.max_bytes // 2 or len(self._frames) > self.max_frames // 2
        ):
            await self._news()

    async def empty(self) -> None:
        """Return when everything is sent, or can't be."""
        while self._size:
            await self._news()

    async def _news(self) -> None:
        if self._changed is None:
            self._changed = trio.Event()
        await self._changed.wait()

    def _tell(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    #### Sending

    def flush(self) -> None:
        """Write what waits, as far as it goes without waiting."""
        self._marked = False
        if self._writing or not self._frames:
            return
        if self._socket is None:
            self._start_writing()
            return
        try:
            self._write(self._socket.fileno())
        except BlockingIOError:
            self._start_writing()
        except OSError:
            # Whoever reads from the connection learns it, too.
            self._break()
        if self._changed is not None:
            self._tell()

    def _write(self, descriptor: int) -> None:
        while self._frames:
            if len(self._frames) == 1:
                # As it nearly always is, and a vector costs more.
                self._count(os.write(descriptor, self._frames[0]))
                continue
            few = len(self._frames) <= _MAX_VECTORS
            batch = self._frames if few else self._frames[:_MAX_VECTORS]
            self._count(os.writev(descriptor, batch))

    def _count(self, sent: int) -> None:
        counts = self.flusher.sent
        counts.bytes += sent
        self._size -= sent
        if not self._size:
            # As it nearly always is.
            counts.frames += len(self._frames)
            self._frames.clear()
            self._begun = False
            return
        whole = 0
        for frame in self._frames:
            if sent < len(frame):
                break
            sent -= len(frame)
            whole += 1
        counts.frames += whole
        del self._frames[:whole]
        if whole:
            self._begun = False
        if sent:
            self._frames[0] = self._frames[0][sent:]
            self._begun = True

    def _start_writing(self) -> None:
        self._writing = True
        self.flusher.nursery.start_soon(self._write_rest)

    async def _write_rest(self) -> None:
        try:
            while self._frames and not self._broken:
                await self._write_piece()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._break()
        finally:
            self._writing = False
            self._tell()

    async def _write_piece(self) -> None:
        taken, size = 0, 0
        while taken < len(self._frames) and size < PIECE_BYTES:
            size += len(self._frames[taken])
            taken += 1
        piece = b"".join(self._frames[:taken])
        del self._frames[:taken]
        self._begun = False
        await self.stream.send_all(piece)
        self._size -= size
        self.flusher.sent.frames += taken
        self.flusher.sent.bytes += size
        self._tell()

    def _break(self) -> None:
        self._broken = self._sealed = True
        self._frames.clear()
        self._size = 0
        self._tell()
