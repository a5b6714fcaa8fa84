"""How actors are made and begin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import FunctionType
from typing import Any

from ._behaviour import (
    Supervise,
    Terms,
    check_behaviour,
    check_name,
    check_set_up,
    is_hosted,
)
from ._cell import Cell
from ._context import Context
from ._kernel import Kernel
from ._life import live
from ._phase import CLOSING
from ._ref import Ref
from ._supervisor import Supervisor

Work = Callable[[Context[Any]], Awaitable[None]]


def spawn(parent: Cell, name: str, behaviour: object, terms: Terms) -> Cell:
    """Start a child of *parent*. Its reference works at once.

    *behaviour* is for terms without a factory.
    """
    if parent.phase >= CLOSING:
        raise parent.exited_error()
    check_name(name)
    siblings = parent.children
    if siblings is None:
        siblings = parent.children = {}
    elif name in siblings:
        raise ValueError(
            f"actor {parent.path!r} has a child named {name!r} already; "
            "stop it first or choose another name"
        )
    return _begin(parent, name, behaviour, terms, siblings)


def renew(old: Cell) -> Cell:
    """Start an exited child again: a new actor in the same place."""
    parent, terms = old.parent, old.terms
    assert parent is not None
    assert parent.children is not None
    assert terms is not None
    cell = _begin(parent, old.name, None, terms, parent.children)
    cell.restarts = old.restarts + 1
    old.terms = None
    return cell


def _begin(
    parent: Cell, name: str, behaviour: object, terms: Terms, siblings: dict[str, Cell]
) -> Cell:
    cell, work = make_cell(parent.kernel, parent, name, behaviour, terms)
    siblings[name] = cell
    if cell.nursery_of is not None:
        cell.nursery_of.condemn_if_killed(cell)
    if terms.watch:
        cell.watch(parent.ref)
    if work is None:
        cell.kernel.host.enqueue(cell)
    elif cell.nursery_of is not None:
        cell.nursery_of.run(name, live, cell, work)
    return cell


def make_cell(
    kernel: Kernel,
    parent: Cell | None,
    name: str,
    behaviour: Any,  # noqa: ANN401 - given by a user, checked here
    terms: Terms,
) -> tuple[Cell, Work | None]:
    """Make an actor without starting it; with the work of its task, if it has one."""
    if terms.start is not None:
        behaviour = terms.start()
    if terms.set_up is not None:
        check_set_up(name, behaviour)
    cell = Cell(kernel, parent, name, terms)
    cell.ctx = Context(cell, Ref(cell))
    if type(behaviour) is FunctionType:
        work = behaviour
    elif isinstance(behaviour, Supervise):
        cell.supervises = Supervisor(cell, behaviour)
        return cell, cell.supervises.live
    elif is_hosted(behaviour) and not isinstance(behaviour, type):
        cell.hosted = behaviour
        return cell, None
    else:
        check_behaviour(name, behaviour)
        work = behaviour
    return cell, work if terms.set_up is None else _with_set_up(cell, terms, work)


def _with_set_up(cell: Cell, terms: Terms, behaviour: Work) -> Work:
    async def work(ctx: Context[Any]) -> None:
        async with terms.set_up(behaviour, ctx):
            cell.set_up()
            await behaviour(ctx)

    return work
