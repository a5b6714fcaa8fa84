"""Bugs on purpose: what the simulation must be able to find.

Each mutant is one change to the product, of the kind that somebody makes, for the time
of a block. It replaces nothing around an await: two tasks would undo it crosswise, and
some of it would stay. ``run.py --mutant`` plays seeds with it until the judge finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import attrs

from greenroom.actors.lifecycle import _deletion, _files, _fork, _transfer
from greenroom.actors.runs import _attempts, _operation
from greenroom.actors.sessions import (
    _actor,
    _compaction,
    _drain,
    _intake,
    _record,
    _session,
)
from greenroom.protocol import (
    InputChange,
    PendingInputs,
    RunTerminal,
    ToolMessage,
    ViewBuilder,
    _lanes,
    forked_message,
    next_input,
)
from greenroom.storage import RUN_ACKNOWLEDGED, Appended, Posted, recovery
from greenroom.storage.sqlite import _connection

Operation: Final = _operation.RunOperation
Record: Final = _record.SessionRecord
SessionCompaction: Final = _compaction.SessionCompaction


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


#### Of input that waits


@contextmanager
def lost_input() -> Generator[None]:
    write = _intake.write_inputs

    async def lose(session: Any, change: Any, facts: Any = (), settles: Any = ()):
        if settles and not list(facts):
            change = InputChange(session.inputs)
        await write(session, change, facts, settles)

    with replaced(_intake, "write_inputs", lose):
        yield


@contextmanager
def doubled_input() -> Generator[None]:
    settle = PendingInputs.settle

    def keep(self: Any, input_id: str, settlement: Any, **rest: Any) -> Any:
        is_queued = any(row.id == input_id and not row.sent for row in self.queue)
        if settlement == "delivered" and is_queued:
            settlement = "returned"
        return settle(self, input_id, settlement, **rest)

    with replaced(PendingInputs, "settle", keep):
        yield


@contextmanager
def reordered_steer() -> Generator[None]:
    joined = _lanes.joined
    with replaced(_lanes, "joined", lambda first, second: joined(second, first)):
        yield


@contextmanager
def queue_let_in_from_its_end() -> Generator[None]:
    def last(*args: Any, **rest: Any) -> Any:
        row = next_input(*args, **rest)
        queue = [each for each in args[0].queue if each.state == "pending"]
        return queue[-1] if row in queue else row

    with replaced(_drain, "next_input", last):
        yield


@contextmanager
def edit_not_kept() -> Generator[None]:
    edit = PendingInputs.edit

    def forget(self: Any, input_id: str, parts: Any, *, now: float) -> Any:
        return edit(self, input_id, self.find(input_id).parts or (), now=now)

    with replaced(PendingInputs, "edit", forget):
        yield


#### Of whole sessions


@contextmanager
def half_transfer() -> Generator[None]:
    with replaced(_transfer, "filter_selection", lambda *args, **rest: None):
        yield


@contextmanager
def deletion_forgets_a_stage() -> Generator[None]:
    with replaced(_files, "_remove", lambda path: None):
        yield


@contextmanager
def deletion_without_a_record() -> Generator[None]:
    with replaced(_deletion, "_note", lambda *args: None):
        yield


@contextmanager
def fork_sharing_ids() -> Generator[None]:
    def same(record: Any, new_id: Any, order: int) -> Any:
        return forked_message(record, record.id, order)

    with replaced(_fork, "forked_message", same):
        yield


@contextmanager
def fork_without_its_end() -> Generator[None]:
    cursors = _fork._cursors

    def shorter(reader: Any, source: Any, last: int | None) -> Any:
        return cursors(reader, source, None if last is None else last - 1)

    with replaced(_fork, "_cursors", shorter):
        yield


#### Of compaction


# In one engine the comparison is the second of two guards: nothing begins beside a
# compaction. Without the first the boundary does move meanwhile.
@contextmanager
def compaction_without_comparing() -> Generator[None]:
    free = property(lambda session: session.turn is None)
    with (
        replaced(_session.Session, "is_free", free),
        replaced(SessionCompaction, "_expect", lambda *args: None),
    ):
        yield


@contextmanager
def pin_left_out() -> Generator[None]:
    with replaced(ViewBuilder, "_pin_message", property(lambda view: None)):
        yield


@attrs.frozen
class Mutant:
    """A bug, and where it is looked for."""

    change: Callable[[], AbstractContextManager[None]]
    favours: tuple[str, ...] = ()
    """What happens more often than otherwise (`sim.play.play`)."""
    known: int = 0
    """A seed that has found it, tried first; any change may make it another."""


_WHERE: Final[tuple[tuple[Any, tuple[str, ...], int], ...]] = (
    (dispatch_after_the_effect, (), 0),
    (outcome_not_committed, (), 13),
    (call_run_twice, (), 0),
    (message_before_its_terminal, (), 0),
    (lost_answer, (), 0),
    (doubled_result, (), 0),
    (dropped_result, (), 0),
    (cancel_swallowed, ("cancel",), 3),
    (retry_after_output, ("fault",), 7),
    (told_before_it_is_written, (), 5),
    (told_in_the_order_of_tasks, ("configure", "queue"), 101),
    (prompt_not_stored, (), 0),
    (prompt_not_settled, (), 0),
    (recovery_without_acknowledgement, ("death",), 3),
    (recovery_leaves_messages, ("death",), 0),
    (disk_not_synced, ("death",), 4),
    (lost_input, ("queue",), 0),
    (doubled_input, ("queue",), 0),
    (reordered_steer, ("steer",), 2),
    (queue_let_in_from_its_end, ("queue",), 0),
    (edit_not_kept, ("queue", "change", "cancel"), 17),
    (half_transfer, ("move",), 10),
    (deletion_forgets_a_stage, ("delete",), 0),
    (deletion_without_a_record, ("delete", "death"), 10),
    (fork_sharing_ids, ("fork",), 9),
    (fork_without_its_end, ("fork",), 14),
    (compaction_without_comparing, ("compact", "rewind"), 0),
    (pin_left_out, ("fault",), 27),
)
MUTANTS: Final[Mapping[str, Mutant]] = {
    change.__name__: Mutant(change, favours, known) for change, favours, known in _WHERE
}
