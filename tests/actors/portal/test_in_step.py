"""`greenroom.aio` and `greenroom.sync` have what the engine has, and take the same."""

from __future__ import annotations

import inspect
from typing import Any, Final, get_overloads

import pytest

from greenroom import aio, engine, sync
from greenroom.actors.imports import Imports
from greenroom.actors.sessions import Follower

CLASSES: Final[dict[str, type]] = {
    "Engine": engine.Engine,
    "SessionHandle": engine.SessionHandle,
    "AgentManager": engine.AgentManager,
    "Skills": engine.Skills,
    "Imports": Imports,
}
# What is for the engine's own endpoints and sessions, and of its own thread.
LEFT_OUT: Final[dict[str, set[str]]] = {
    "Engine": {"bindings"},
    "SessionHandle": {"start_following"},
    "AgentManager": {
        "admit_native",
        "backends",
        "begin",
        "belong",
        "create_session",
        "gates",
        "migrate",
        "open_session",
        "register",
        "require",
        "start",
    },
    "Skills": {"start"},
    "Imports": set(),
}
EVERYTHING = [
    pytest.param(flavour, name, id=f"{flavour.__name__}.{name}")
    for flavour in (aio, sync)
    for name in CLASSES
]


def public(thing: type) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def parameters(function: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


@pytest.mark.parametrize(("flavour", "name"), EVERYTHING)
def test_what_the_engine_s_class_has_its_twin_has(flavour: Any, name: str) -> None:
    theirs, ours = public(CLASSES[name]), public(getattr(flavour, name))

    assert LEFT_OUT[name] <= theirs, "leaves out what is not there"
    assert ours - {"remote"} == theirs - LEFT_OUT[name]


@pytest.mark.parametrize(("flavour", "name"), EVERYTHING)
def test_methods_take_what_those_of_the_engine_take(flavour: Any, name: str) -> None:
    theirs, ours = CLASSES[name], getattr(flavour, name)
    different = [
        each
        for each in public(theirs) & public(ours)
        if inspect.isfunction(method := getattr(theirs, each))
        and parameters(method) != parameters(getattr(ours, each))
    ]

    assert different == []


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_awaited_there_is_awaited_in_asyncio_and_waits_in_threads(
    name: str,
) -> None:
    theirs = CLASSES[name]
    awaited = {
        each
        for each in public(theirs) - LEFT_OUT[name]
        if inspect.iscoroutinefunction(getattr(theirs, each))
    }

    in_asyncio, in_threads = getattr(aio, name), getattr(sync, name)
    assert {
        each
        for each in awaited
        if inspect.iscoroutinefunction(getattr(in_asyncio, each))
    } == awaited
    assert not any(
        inspect.iscoroutinefunction(getattr(in_threads, each))
        for each in public(in_threads)
    )


@pytest.mark.parametrize("flavour", [aio, sync])
def test_twins_are_explained_as_the_engine_s_methods_are(flavour: Any) -> None:
    prompt = flavour.SessionHandle.prompt

    assert prompt.__doc__ == engine.SessionHandle.prompt.__doc__


@pytest.mark.parametrize("flavour", [aio, sync])
def test_engines_are_opened_with_the_same_arguments(flavour: Any) -> None:
    assert parameters(flavour.open_engine) == parameters(engine.open_engine)


def test_tools_are_made_with_the_same_arguments() -> None:
    def made_with(tool: Any) -> list[dict[str, Any]]:
        return [
            {each.name: each.default for each in parameters(overload)}
            for overload in get_overloads(tool)
        ]

    assert made_with(aio.tool) == made_with(engine.tool) != []
    assert sync.tool is engine.tool


@pytest.mark.parametrize(
    "operation", [aio.Operation, sync.Operation], ids=["aio", "sync"]
)
def test_operations_have_what_the_engine_s_has(operation: type) -> None:
    assert public(operation) == public(engine.Operation)
    for name in ("dispatch", "progress", "report", "update_plan"):
        theirs = parameters(getattr(engine.Operation, name))
        assert parameters(getattr(operation, name)) == theirs


@pytest.mark.parametrize("flavour", [aio, sync])
def test_a_follower_has_its_snapshot(flavour: Any) -> None:
    # Their other names are of the engine's thread, or what iterating does.
    left = {"batch", "close", "hand_over"}

    assert public(flavour.Follower) == public(Follower) - left
