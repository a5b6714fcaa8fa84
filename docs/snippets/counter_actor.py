"""Actors in one page: a hosted one, a task, an ask, a crash, a restart, a stop."""

from __future__ import annotations

import attrs
import trio

from greenroom.actors.kernel import (
    Ask,
    CancelCause,
    ChildSpec,
    Context,
    Request,
    Stop,
    open_system,
)


@attrs.frozen
class GetCount(Request[int]):
    """Asks how far the counter is."""


class Counter:
    """Hosted: it handles one message at a time and never waits."""

    def __init__(self) -> None:
        self.count = 0

    def handle(self, message: object, ctx: Context[int | Ask[int]]) -> None:
        match message:
            case int():
                self.count += 100 // message
            case Ask(request=GetCount(), reply=reply):
                reply.set_value(self.count)
            case Stop():
                ctx.exit()
            case _:
                pass


async def ticker(ctx: Context[None]) -> None:
    """A task: it may wait, and is cancelled where it waits."""
    counter = ctx.system.child("counter")
    try:
        while counter is not None:
            await counter.tell(50)
            await trio.sleep(0.01)
    finally:
        print(f"ticker ends: {ctx.cancel_cause}")


async def main() -> None:
    async with open_system(report=lambda report: print(f"report: {report}")) as system:
        counter = system.start_child(ChildSpec("counter", Counter))
        await counter.tell(20)
        print(f"count: {await counter.ask(GetCount())}")

        ticking = system.spawn("ticker", ticker)
        await trio.sleep(0.005)
        ticking.cancel(CancelCause.USER_STOP)
        print(f"ticker exited: {await ticking.wait_exited()}")
        print(f"count: {await counter.ask(GetCount())}")

        await counter.tell(0)  # it fails, and is started again: a new actor
        print(f"counter exited: {await counter.wait_exited()}")
        while (again := system.child("counter")) is None:
            await trio.lowlevel.checkpoint()
        print(f"count: {await again.ask(GetCount())}")


if __name__ == "__main__":
    trio.run(main)
