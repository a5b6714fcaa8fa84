"""Bugs on purpose: what the simulation must be able to find.

Each mutant is one change to the product, of the kind that somebody makes, for the time
of a block. It replaces nothing around an await: two tasks would undo it crosswise, and
some of it would stay. ``run.py --mutant`` plays seeds with it until the judge finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from greenroom.actors.runs import _attempts, _operation
from greenroom.actors.sessions import _actor, _record
from greenroom.protocol import (
    RunTerminal,
    ToolMessage,
    ViewBuilder,
)
from greenroom.storage import RUN_ACKNOWLEDGED, Appended, Posted, recovery
from greenroom.storage.sqlite import _connection

Operation: Final = _operation.RunOperation
Record: Final = _record.SessionRecord


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Generator[None]:
    """Let *name* of *owner* be *new* while the block runs."""
    old = getattr(owner, name)
    setattr(owner, name, new)
    try:
        yield
    finally:
        setattr(owner, name, old)


@contextmanager
def dispatch_after_the_effect() -> Generator[None]:
    outcome, dispatch = Operation._commit_outcome, Operation._commit_dispatch

    async def later(self: Any, target: Any) -> None:
        self.dispatched = True

    async def both(self: Any, result: Any) -> None:
        await dispatch(self, _operation.LOCAL_TARGET)
        await outcome(self, result)

    with (
        replaced(Operation, "_commit_dispatch", later),
        replaced(Operation, "_commit_outcome", both),
    ):
        yield


@contextmanager
def outcome_not_committed() -> Generator[None]:
    async def forget(self: Any, result: Any) -> None:
        return None

    with replaced(Operation, "_commit_outcome", forget):
        yield


@contextmanager
def call_run_twice() -> Generator[None]:
    perform, dispatch = Operation.perform, Operation.dispatch
    repeated: set[int] = set()

    async def again(self: Any, tool: Any, arguments: Any) -> Any:
        result = await perform(self, tool, arguments)
        if self.dispatched and not result.is_error:
            repeated.add(id(self))
            await tool.run(arguments, self)
            repeated.remove(id(self))
        return result

    async def known(self: Any, target: Any = None) -> None:
        if id(self) not in repeated:
            await dispatch(self, target)

    with replaced(Operation, "perform", again), replaced(Operation, "dispatch", known):
        yield


@contextmanager
def message_before_its_terminal() -> Generator[None]:
    append, commit = Record.append, Record.commit
    held: dict[Any, Any] = {}

    async def hold(self: Any, record: Any) -> bool:
        if isinstance(record, RunTerminal):
            held[id(self)] = record
            return True
        return await commit(self, record)

    async def let(self: Any, facts: Any, settles: Any = ()) -> None:
        await append(self, facts, settles)
        if record := held.pop(id(self), None):
            await commit(self, record)

    with replaced(Record, "append", let), replaced(Record, "commit", hold):
        yield


@contextmanager
def lost_answer() -> Generator[None]:
    append = Record.append

    async def lose(self: Any, facts: Any, settles: Any = ()) -> None:
        if not any('"status":"denied"' in fact.payload for fact in facts):
            await append(self, facts, settles)

    with replaced(Record, "append", lose):
        yield


@contextmanager
def _view(change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Generator[None]:
    messages: Any = ViewBuilder.messages.fget  # type: ignore[attr-defined]
    with replaced(ViewBuilder, "messages", property(lambda s: change(messages(s)))):
        yield


@contextmanager
def doubled_result() -> Generator[None]:
    def double(messages: tuple[Any, ...]) -> tuple[Any, ...]:
        last = messages[-1]
        return (*messages, last) if isinstance(last, ToolMessage) else messages

    with _view(double):
        yield


@contextmanager
def dropped_result() -> Generator[None]:
    def drop(messages: tuple[Any, ...]) -> tuple[Any, ...]:
        return messages[:-1] if isinstance(messages[-1], ToolMessage) else messages

    with _view(drop):
        yield


@contextmanager
def cancel_swallowed() -> Generator[None]:
    async def ignore(self: Any, message: Any, ctx: Any) -> None:
        return None

    with replaced(_actor.SessionActor, "_cancel", ignore):
        yield


@contextmanager
def retry_after_output() -> Generator[None]:
    decide = _attempts.decide_retry

    def forget(*args: Any, committed: bool, **rest: Any) -> Any:
        return decide(*args, committed=False, **rest)

    with replaced(_attempts, "decide_retry", forget):
        yield


@contextmanager
def told_before_it_is_written() -> Generator[None]:
    async def early(self: Any, facts: Any, settles: Any = (), *, before: Any = None):
        seqs = range(self.tape.head + 1, self.tape.head + 1 + len(facts))
        now, created = self.clock.now(), (True,) * len(facts)
        self._tell(facts, Appended(seqs.stop - 1, tuple(seqs), created), now)
        piece = self.tape.append_piece(facts, settles, now=now)
        await self.writer.submit(_behind(before, piece))

    with replaced(Record, "append", early):
        yield


@contextmanager
def told_in_the_order_of_tasks() -> Generator[None]:
    async def tell(self: Any, facts: Any, settles: Any = (), *, before: Any = None):
        now = self.clock.now()
        piece = self.tape.append_piece(facts, settles, now=now)
        self._tell(facts, await self.writer.submit(_behind(before, piece)), now)

    with replaced(Record, "append", tell):
        yield


def _behind(before: Any, piece: Any) -> Any:
    return piece if before is None else _record._behind(before, piece)


@contextmanager
def prompt_not_stored() -> Generator[None]:
    async def post(self: Any, command_id: str, body: str) -> Posted:
        return Posted()

    with replaced(Record, "post", post):
        yield


@contextmanager
def prompt_not_settled() -> Generator[None]:
    append = Record.append

    async def keep(self: Any, facts: Any, settles: Any = (), **more: Any) -> None:
        await append(self, facts, **more)

    with replaced(Record, "append", keep):
        yield


@contextmanager
def recovery_without_acknowledgement() -> Generator[None]:
    append = recovery._append

    def forget(store: Any, grant: Any, head: Any, facts: Any, now: float) -> Any:
        kept = [fact for fact in facts if fact.name != RUN_ACKNOWLEDGED]
        return append(store, grant, head, kept, now)

    with replaced(recovery, "_append", forget):
        yield


@contextmanager
def recovery_leaves_messages() -> Generator[None]:
    with replaced(recovery, "_mended", lambda *args: []):
        yield


@contextmanager
def disk_not_synced() -> Generator[None]:
    settings = tuple(
        each for each in _connection._WRITER if each is not _connection.synchronous_full
    )
    off = (*settings, lambda db: db.pragma("synchronous", "off"))
    with replaced(_connection, "_WRITER", off):
        yield


MUTANTS: Final[Mapping[str, Callable[[], AbstractContextManager[None]]]] = {
    mutant.__name__: mutant
    for mutant in (
        dispatch_after_the_effect,
        outcome_not_committed,
        call_run_twice,
        message_before_its_terminal,
        lost_answer,
        doubled_result,
        dropped_result,
        cancel_swallowed,
        retry_after_output,
        told_before_it_is_written,
        told_in_the_order_of_tasks,
        prompt_not_stored,
        prompt_not_settled,
        recovery_without_acknowledgement,
        recovery_leaves_messages,
        disk_not_synced,
    )
}
