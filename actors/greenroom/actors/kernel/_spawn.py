"""How actors are made and begin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ._behaviour import SetUp, Spec, Supervise, check_behaviour, check_spec
from ._cell import Cell
from ._context import Context
from ._kernel import Kernel
from ._life import live
from ._phase import Phase
from ._ref import Ref
from ._supervisor import Supervisor


def spawn(parent: Cell, spec: Spec) -> Cell:
    """Start a child of *parent*. Its reference works at once."""
    if parent.phase >= Phase.CLOSING:
        raise parent.exited_error()
    check_spec(spec)
    siblings = parent.children
    if siblings is None:
        siblings = parent.children = {}
    elif spec.name in siblings:
        raise ValueError(
            f"actor {parent.path!r} has a child named {spec.name!r} already; "
            "stop it first or choose another name"
        )
    return _begin(parent, spec, siblings)


def renew(old: Cell) -> Cell:
    """Start an exited child again: a new actor in the same place."""
    parent, spec = old.parent, old.spec
    assert parent is not None
    assert parent.children is not None
    assert spec is not None
    cell = _begin(parent, spec, parent.children)
    cell.restarts = old.restarts + 1
    old.spec = None
    return cell


def _begin(parent: Cell, spec: Spec, siblings: dict[str, Cell]) -> Cell:
    cell, work = make_cell(parent.kernel, parent, spec)
    siblings[spec.name] = cell
    if spec.watch:
        cell.watch(parent.ref)
    if work is None:
        cell.kernel.host.enqueue(cell)
    elif cell.nursery_of is not None:
        cell.nursery_of.run(spec.name, live, cell, work)
    return cell


def make_cell(
    kernel: Kernel, parent: Cell | None, spec: Spec
) -> tuple[Cell, Callable[[Context[Any]], Awaitable[None]] | None]:
    """Make an actor without starting it; with the work of its task, if it has one."""
    behaviour = spec.behaviour if spec.start is None else spec.start()
    check_behaviour(behaviour, spec)
    cell = Cell(kernel, parent, spec, behaviour)
    cell.ctx = Context(cell, Ref(cell))
    if cell.handler is not None:
        return cell, None
    if isinstance(behaviour, Supervise):
        cell.supervises = Supervisor(cell, behaviour)
        return cell, cell.supervises.live
    if spec.set_up is not None:
        return cell, _with_set_up(cell, spec.set_up, behaviour)
    return cell, behaviour


def _with_set_up(
    cell: Cell,
    set_up: SetUp,
    behaviour: Any,  # noqa: ANN401
) -> Callable[[Context[Any]], Awaitable[None]]:
    async def work(ctx: Context[Any]) -> None:
        async with set_up(behaviour, ctx):
            cell.set_up()
            await behaviour(ctx)

    return work
