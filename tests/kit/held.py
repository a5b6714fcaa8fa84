"""A session's record whose writes wait."""

from __future__ import annotations

from typing import Any

import attrs
import trio


@attrs.define(eq=False)
class HeldAppend:
    """A record that holds each append at a gate."""

    inner: Any
    reached: trio.Event = attrs.field(factory=trio.Event)
    gate: trio.Event = attrs.field(factory=trio.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def append(self, *args: Any, **kwargs: Any) -> None:
        self.reached.set()
        await self.gate.wait()
        await self.inner.append(*args, **kwargs)
