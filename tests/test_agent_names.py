"""Two names that are known in few places: the builtin agent's id, and an agent's type.

Every module is parsed. The builtin id is for the one rule that chooses it and for the
upkeep of its row (AGT-10); the names that an agent's kind had before are for the two
edges where they are read (AGT-05).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
BUILTIN_IS_KNOWN_TO: Final = {
    "protocol/greenroom/protocol/_ids.py",
    "protocol/greenroom/protocol/__init__.py",
    "protocol/greenroom/protocol/_agents.py",  # chosen_agent, and it alone
    "storage/greenroom/storage/_builtin.py",
    "storage/greenroom/storage/legacy/_agents.py",
    "storage/greenroom/storage/legacy/_migration.py",
    # Whose packages lay in the root of the older layout.
    "actors/greenroom/actors/skills/_migration.py",
}
EDGES: Final = (
    "protocol/greenroom/protocol/gateway/",
    "storage/greenroom/storage/legacy/",
)
OLD_NAMES: Final = frozenset({"agentType", "agent_type"})
ABOUT_AGENTS: Final = ("agents/", "_agents.py", "_agent_config.py", "_builtin.py")


def modules() -> dict[str, str]:
    return {
        str(path.relative_to(ROOT)): path.read_text()
        for layer in ("protocol", "storage", "actors")
        for path in sorted((ROOT / layer / "greenroom").rglob("*.py"))
    }


def names_builtin(source: str) -> bool:
    if "DEFAULT_AGENT_ID" not in source:
        return False
    tree = ast.parse(source)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
    return "DEFAULT_AGENT_ID" in names


def old_names(source: str, *, about_agents: bool) -> Iterator[str]:
    """Yield what reads or writes an old name: attributes, keywords, keys, reflection.

    ``type`` is a word of much else, so it is looked for where agents are dealt with.
    """
    wanted = OLD_NAMES | ({"type"} if about_agents else frozenset())
    if not about_agents and not any(name in source for name in wanted):
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) if name in wanted:
                yield f"line {node.lineno}: .{name}"
            case ast.Constant(value=str(name)) if name in wanted:
                yield f"line {node.lineno}: {name!r}"
            case ast.keyword(arg=str(name)) | ast.arg(arg=name) if name in wanted:
                yield f"line {node.lineno}: {name}="
            case ast.AnnAssign(target=ast.Name(id=name)) if name in wanted:
                yield f"line {node.lineno}: field {name}"
            case ast.Name(id=("getattr" | "hasattr" | "vars") as name) if about_agents:
                yield f"line {node.lineno}: {name}"


@pytest.mark.contract("AGT-10")
def test_the_builtin_id_is_named_by_its_rule_and_its_upkeep_alone() -> None:
    found = {path for path, source in modules().items() if names_builtin(source)}
    assert found == BUILTIN_IS_KNOWN_TO
    tree = ast.parse((ROOT / "protocol/greenroom/protocol/_agents.py").read_text())
    uses = [
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and any(
            isinstance(node, ast.Name) and node.id == "DEFAULT_AGENT_ID"
            for node in ast.walk(function)
        )
    ]
    assert uses == ["chosen_agent"]


@pytest.mark.contract("AGT-10")
def test_the_builtin_id_is_not_written_out_where_agents_are_dealt_with() -> None:
    engine = (ROOT / "actors/greenroom/engine.py").read_text()
    called = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(engine))
        if isinstance(node, ast.keyword)
        and node.arg in ("agent_id", "agent")
        and isinstance(node.value, ast.Constant)
    ]
    assert called == []


@pytest.mark.contract("AGT-05")
def test_the_old_names_of_a_kind_are_known_at_the_edges_alone() -> None:
    found = {
        path: list(old_names(source, about_agents=is_about_agents(path)))
        for path, source in modules().items()
        if not path.startswith(EDGES)
    }
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.contract("AGT-05")
def test_both_edges_know_both_or_what_they_read() -> None:
    told = {
        path: source for path, source in modules().items() if path.startswith(EDGES)
    }
    wire = "".join(s for path, s in told.items() if "gateway/_agents" in path)
    assert {name.partition(": ")[2] for name in old_names(wire, about_agents=True)} >= {
        "field type",
        "field agent_type",
    }


def is_about_agents(path: str) -> bool:
    return any(part in path for part in ABOUT_AGENTS) and "_parser" not in path


@pytest.mark.parametrize(
    "source",
    [
        "agent.type",
        "row['agentType']",
        "getattr(agent, 'kind')",
        "make(agent_type='acp')",
        "class A:\n    type: str",
        "def f(agent_type): ...",
    ],
)
def test_an_old_name_is_found(source: str) -> None:
    assert list(old_names(source, about_agents=True))


def test_a_builtin_id_is_found() -> None:
    assert names_builtin("from greenroom.protocol import DEFAULT_AGENT_ID")
    assert names_builtin("protocol.DEFAULT_AGENT_ID")
    assert not names_builtin("agent_id = chosen_agent(None, None)")
