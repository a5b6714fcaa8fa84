"""Embedding in threads: a tool that blocks, a permission, two sessions at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from greenroom.engine import Deny, Grant, Provider
from greenroom.protocol import StatusChanged
from greenroom.sync import Engine, Operation, SessionHandle, open_engine, tool
from greenroom.testing import Call, Halt, RehearsalProvider, Say


@tool(permission=lambda to: f"ring at {to}'s")
def ring(operation: Operation, to: str) -> str:
    """Ring at somebody's door."""
    operation.dispatch()  # durable from here on: the bell may ring
    operation.progress("ding dong")
    return f"{to} is at home"


def decide(session: SessionHandle) -> None:
    """Wait for the question, and answer it."""
    with session.follow() as events:
        waiting = session.interactions()
        while not waiting:
            event = next(events)
            if isinstance(event, StatusChanged) and event.waiting_for == "permission":
                waiting = session.interactions()
    grant = waiting[0].title.endswith("Ada's")
    session.answer(waiting[0].id, Grant() if grant else Deny("only Ada's"))


def visit(engine: Engine, name: str) -> str:
    """Run one turn to its end, while another thread decides what it may do."""
    session = engine.create_session(workspace=".", model="rehearsed")
    with ThreadPoolExecutor() as threads:
        deciding = threads.submit(decide, session)
        turn = session.prompt(f"See whether {name} is at home.")
        deciding.result()
    return f"{name}: {turn.text}"


def main(provider: Provider, state: Path) -> None:
    """Visit two at once."""
    with (
        open_engine(state=state, provider=provider, tools=[ring]) as engine,
        ThreadPoolExecutor() as threads,
    ):
        for told in threads.map(lambda name: visit(engine, name), ["Ada", "Bob"]):
            print(told)


def reply(request: object) -> list[Call | Say | Halt]:
    """Say what a model might: ring first, then tell what came of it."""
    said = str(request)
    if "is at home'" in said:
        return [Say("at home"), Halt()]
    if "only Ada's" in said:
        return [Say("I may not ring"), Halt()]
    return [Call("ring", {"to": "Ada" if "Ada" in said else "Bob"}), Halt("tool_use")]


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(RehearsalProvider(reply), Path(folder))
