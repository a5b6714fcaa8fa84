"""Descriptors as streams, be they pipes, sockets, terminals or files.

A thread reads and a thread writes. Non-blocking mode would be cheaper, but it belongs
to what is open, not to our descriptor: standard error, or the shell that started us,
may share it. A thread that is abandoned while the peer keeps it waiting ends with the
process.
"""

from __future__ import annotations

import os
from typing import final

import attrs
import trio


@final
@attrs.define(eq=False)
class DescriptorReader(trio.abc.ReceiveStream):
    """Reads a descriptor; does not own it."""

    descriptor: int
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(1), init=False
    )

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what there is, nothing at the end.

        Cancelling abandons a read that waits; what it reads yet is lost.

        Raises:
            trio.BrokenResourceError: it can't be read.
        """
        try:
            return await trio.to_thread.run_sync(
                os.read,
                self.descriptor,
                max_bytes or 65_536,
                abandon_on_cancel=True,
                limiter=self._limiter,
            )
        except OSError as exc:
            raise trio.BrokenResourceError(f"can't read: {exc.strerror}") from exc

    async def aclose(self) -> None:
        """Do nothing: whoever opened the descriptor closes it."""
        await trio.lowlevel.checkpoint()


@final
@attrs.define(eq=False)
class DescriptorWriter(trio.abc.SendStream):
    """Writes a descriptor; does not own it."""

    descriptor: int
    _limiter: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(1), init=False
    )

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of *data*.

        Cancelling abandons a write that waits; how much of it went out is not known.

        Raises:
            trio.BrokenResourceError: nobody reads it any more.
        """
        rest = memoryview(data)
        while rest:
            try:
                written = await trio.to_thread.run_sync(
                    os.write,
                    self.descriptor,
                    rest,
                    abandon_on_cancel=True,
                    limiter=self._limiter,
                )
            except OSError as exc:
                raise trio.BrokenResourceError(f"can't write: {exc.strerror}") from exc
            rest = rest[written:]

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once: a write waits in its thread."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Do nothing: whoever opened the descriptor closes it."""
        await trio.lowlevel.checkpoint()
