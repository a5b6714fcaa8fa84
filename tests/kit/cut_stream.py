"""A connection that breaks at any byte."""

from __future__ import annotations

from typing import Any

import attrs
import trio


@attrs.define(eq=False)
class Cut(trio.abc.Stream):
    """A stream that breaks after so many received bytes, within a frame or not."""

    inner: trio.abc.Stream
    left: int

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self.left <= 0:
            await trio.aclose_forcefully(self.inner)
            raise trio.BrokenResourceError
        data = bytes(await self.inner.receive_some(min(max_bytes or 4_096, self.left)))
        self.left -= len(data)
        return data

    async def send_all(self, data: Any) -> None:
        await self.inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self.inner.aclose()
