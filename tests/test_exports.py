"""Front doors only pass on what lies behind them, and all of it is explained."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
SOURCE_ROOTS: Final = ("actors", "protocol", "storage")


def front_doors() -> list[str]:
    return sorted(
        ".".join(path.parent.relative_to(ROOT / root).parts)
        for root in SOURCE_ROOTS
        for path in (ROOT / root / "greenroom").rglob("__init__.py")
    )


SHOP_WINDOW = "greenroom.testing"
"""The one front door that also passes on what other front doors show."""


def not_a_re_export(source: str, *, shop_window: bool = False) -> list[str]:
    """Return the statements of a front door that do more than pass names on."""
    first, *others = ast.parse(source).body
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    found = [] if is_docstring else [ast.unparse(first)]
    return found + [
        ast.unparse(node)
        for node in others
        if not _passes_on(node, shop_window=shop_window)
    ]


def _passes_on(node: ast.stmt, *, shop_window: bool) -> bool:
    if not isinstance(node, ast.ImportFrom):
        return False
    if node.module == "__future__":
        return True
    other = shop_window and (node.module or "").startswith("greenroom.")
    ours = node.level == 1 or other
    return ours and all(name.asname == name.name for name in node.names)


def exported(door: str) -> dict[str, object]:
    module = import_module(door)
    tree = ast.parse(inspect.getsource(module))
    return {
        name.name: getattr(module, name.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for name in node.names
    }


def unexplained(names: dict[str, object]) -> list[str]:
    """Return the classes and functions among *names* that have no docstring."""
    return [
        name
        for name, value in names.items()
        if (inspect.isclass(value) or inspect.isroutine(value))
        and not inspect.cleandoc(vars(value).get("__doc__") or value.__doc__ or "")
    ]


@pytest.mark.parametrize("door", front_doors())
def test_a_front_door_only_re_exports(door: str) -> None:
    source = inspect.getsource(import_module(door))
    assert not_a_re_export(source, shop_window=door == SHOP_WINDOW) == []


@pytest.mark.parametrize("door", front_doors())
def test_whatever_a_front_door_exports_has_a_docstring(door: str) -> None:
    assert unexplained(exported(door)) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from ._x import Name",
        "from ._x import Name as Other",
        "from greenroom.protocol import Fact as Fact",
        "import os",
        "VERSION = 1",
        "def main() -> None: ...",
    ],
)
def test_a_front_door_that_does_more_is_found(statement: str) -> None:
    assert not_a_re_export(f'"""A door."""\n{statement}')
    assert not_a_re_export(statement)


def test_a_name_without_a_docstring_is_found() -> None:
    class Silent:
        pass

    def explained() -> None:
        """Does nothing."""

    assert unexplained({"Silent": Silent, "explained": explained}) == ["Silent"]


def test_the_protocol_exports_more_than_nothing() -> None:
    assert "Fact" in exported("greenroom.protocol")
