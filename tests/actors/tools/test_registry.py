"""Layers of tools: the nearest wins, and what was contributed can be taken back."""

from __future__ import annotations

import gc
import weakref

import attrs
import pytest
from hypothesis import given, strategies as st

from greenroom.actors.tools import (
    Scope,
    ScopeKind,
    ToolRefused,
    ToolRegistry,
    tool,
)


def named(name, description="does nothing"):
    async def fn() -> str:
        return name

    fn.__doc__ = description
    return tool(name=name)(fn)


def described(registry, name, scope=None):
    found = registry.lookup(name, scope)
    return None if found is None else found.definition.description


def layered():
    registry = ToolRegistry()
    generation = Scope(ScopeKind.GENERATION, "one", registry.root)
    membership = Scope(ScopeKind.MEMBERSHIP, "member", generation)
    agent = Scope(ScopeKind.AGENT, "agent", membership)
    return registry, (registry.root, generation, membership, agent)


def test_the_nearest_scope_wins():
    registry, scopes = layered()
    for scope in scopes:
        registry.contribute(named("x", scope.label), scope=scope)
        assert described(registry, "x", scopes[-1]) == scope.label
    assert described(registry, "x") == "global"


def test_a_scope_does_not_see_what_is_nearer_or_beside_it():
    registry, (root, generation, membership, _) = layered()
    beside = Scope(ScopeKind.GENERATION, "two", root)
    registry.contribute(named("x"), scope=membership)
    assert registry.lookup("x", generation) is None
    assert registry.lookup("x", beside) is None


def test_undo_removes_exactly_its_own_contribution_and_reveals_the_farther_one():
    registry, (_, generation, _, agent) = layered()
    registry.contribute(named("x", "far"), named("y"))
    with registry.contribute(named("x", "near"), named("z"), scope=generation) as mine:
        assert [d.name for d in registry.definitions(agent)] == ["x", "y", "z"]
        assert described(registry, "x", agent) == "near"
    assert [d.name for d in registry.definitions(agent)] == ["x", "y"]
    assert described(registry, "x", agent) == "far"
    mine.undo()
    assert [d.name for d in registry.definitions(agent)] == ["x", "y"]


def test_undo_leaves_what_somebody_else_put_in_its_place():
    registry = ToolRegistry()
    first = registry.contribute(named("x", "first"))
    first.undo()
    registry.contribute(named("x", "second"))
    first.undo()
    assert described(registry, "x") == "second"


def test_a_name_that_is_taken_in_the_layer_adds_nothing():
    registry = ToolRegistry()
    registry.contribute(named("x"))
    with pytest.raises(ValueError, match="'x' is already contributed"):
        registry.contribute(named("y"), named("x"))
    with pytest.raises(ValueError, match="'z' is already contributed"):
        registry.contribute(named("z"), named("z"))
    assert [d.name for d in registry.definitions()] == ["x"]


def test_after_seal_nothing_is_added_globally_but_narrower_scopes_go_on():
    registry, (_, generation, _, _) = layered()
    early = registry.contribute(named("x"))
    registry.seal()
    with pytest.raises(RuntimeError, match="sealed"):
        registry.contribute(named("y"))
    registry.contribute(named("y"), scope=generation)
    early.undo()
    assert [d.name for d in registry.definitions(generation)] == ["y"]


def test_a_snapshot_does_not_move_with_the_registry():
    registry = ToolRegistry()
    mine = registry.contribute(named("x"))
    tools = registry.snapshot()
    mine.undo()
    registry.contribute(named("y"))
    assert [d.name for d in tools.definitions] == ["x"]
    assert tools.find("x").definition.name == "x"
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        tools.definitions = ()  # pyright: ignore[reportAttributeAccessIssue]


def test_unknown_disabled_and_nameless_tools_are_refused_each_in_its_way():
    registry = ToolRegistry()
    registry.contribute(named("x"), named("y"))
    tools = registry.snapshot(disabled=["y", "nobody"])
    assert [d.name for d in tools.definitions] == ["x"]
    with pytest.raises(ToolRefused, match="'y' is disabled"):
        tools.find("y")
    with pytest.raises(ToolRefused, match="no tool 'nobody'; there are: x"):
        tools.find("nobody")
    with pytest.raises(ToolRefused, match="names no tool"):
        tools.find("")
    with pytest.raises(ToolRefused) as caught:
        tools.find("\x00\ud800" + "n" * 100_000)
    assert len(str(caught.value).encode()) < 200


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ü", "x" * 65, "x\n"])
def test_names_that_providers_refuse_are_refused(name):
    function = named("x")
    bad = attrs.evolve(
        function,
        definition=type(function.definition)(name, "", function.definition.parameters),
    )
    with pytest.raises(ValueError, match="tool name"):
        ToolRegistry().contribute(bad)


def test_scopes_nest_in_one_direction_and_stay_with_their_registry():
    registry, (root, generation, membership, agent) = layered()
    with pytest.raises(ValueError, match="can't be the parent"):
        Scope(ScopeKind.GENERATION, "x", agent)
    with pytest.raises(ValueError, match="has a parent"):
        Scope(ScopeKind.AGENT, "x")
    with pytest.raises(ValueError, match="has a parent"):
        Scope(ScopeKind.GLOBAL, "x", root)
    with pytest.raises(ValueError, match="another registry"):
        ToolRegistry().lookup("x", membership)
    assert generation.chain() == (generation, root)
    assert registry.lookup("x", agent) is None


def test_a_layer_goes_with_its_scope():
    registry = ToolRegistry()
    scope = Scope(ScopeKind.AGENT, "gone", registry.root)
    mine = named("x")
    gone = weakref.ref(mine)
    registry.contribute(mine, scope=scope)
    del scope, mine
    gc.collect()
    assert gone() is None


@given(st.permutations(["b", "a", "_z", "Z", "m-1"]))
def test_the_order_of_definitions_is_not_that_of_contributions(names):
    registry = ToolRegistry()
    for name in names:
        registry.contribute(named(name))
    assert [d.name for d in registry.definitions()] == sorted(names)
