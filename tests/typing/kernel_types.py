"""What a type checker must know of references. Checked by pyright, never run."""

from __future__ import annotations

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
from typing import assert_type

import attrs

from greenroom.actors.kernel import (
    Ask,
    Context,
    Operation,
    Ref,
    Request,
    System,
    open_system,
)


@attrs.frozen
class GetCount(Request[int]):
    """Asks for a number."""


@attrs.frozen
class GetNames(Request[tuple[str, ...]]):
    """Asks for some names."""


async def counter(ctx: Context[str | Ask[int]]) -> None:
    assert_type(ctx.ref, Ref[str | Ask[int]])
    async for message in ctx.mailbox:
        assert_type(message, str | Ask[int])
        if isinstance(message, Ask):
            message.reply.set_value(1)
            message.reply.set_value("one")  # pyright: ignore[reportArgumentType]


class Hosted:
    def handle(self, message: object, ctx: Context[bytes]) -> None:
        ctx.ref.tell_nowait(b"")
        ctx.ref.tell_nowait("")  # pyright: ignore[reportArgumentType]


async def main() -> None:
    async with open_system() as system:
        assert_type(system, System)
        ref = system.spawn("counter", counter)
        assert_type(ref, Ref[str | Ask[int]])
        assert_type(await ref.ask(GetCount()), int)
        assert_type(await ref.ask(GetNames()), tuple[str, ...])
        await ref.tell(3)  # pyright: ignore[reportArgumentType]

        hosted = system.spawn("hosted", Hosted())
        assert_type(hosted, Ref[bytes])
        narrower: Ref[bool] = Ref[int].__new__(Ref[int])
        wider: Ref[object] = hosted  # pyright: ignore[reportAssignmentType]
        narrower.watch(wider)

        operation = system.reaper.start(counter_of, 1, name="op")
        assert_type(operation, Operation)
        system.reaper.start(counter_of, "1", name="op")  # pyright: ignore[reportArgumentType]


async def counter_of(number: int) -> int:
    return number
