"""Who may import what, in one direction: protocol, then storage, then actors.

Every module is parsed, none is imported. `problems` is the law; the last test holds
the whole project to it, the ones before show that each rule can fail.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Final

import attrs
import pytest

ROOT: Final = Path(__file__).parent.parent
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LAYERS: Final = ("protocol", "storage", "actors")
CLOCK_MODULE: Final = "greenroom.actors.kernel._clock"
BANNED_NAMES: Final = frozenset(
    {"utils", "util", "helpers", "common", "shared", "misc", "manager", "base"}
)
VALUES: Final = frozenset({"attrs", "msgspec"})
THIRD_PARTY: Final = {
    "protocol": VALUES,
    "storage": VALUES | {"apsw"},
    "actors": frozenset(
        requirement.split(">=")[0].removesuffix("-api").replace("-", "_")
        for requirement in (
            *PROJECT["dependencies"],
            *chain.from_iterable(PROJECT["optional-dependencies"].values()),
        )
    ),
}
# Input and output, concurrency, clocks and randomness of the standard library.
IMPURE: Final = frozenset(
    {
        "asyncio",
        "concurrent",
        "fcntl",
        "ftplib",
        "getpass",
        "glob",
        "http",
        "io",
        "logging",
        "mmap",
        "multiprocessing",
        "os",
        "pathlib",
        "pty",
        "random",
        "resource",
        "sched",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "smtplib",
        "socket",
        "socketserver",
        "sqlite3",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "termios",
        "threading",
        "time",
        "urllib",
    }
)
ASYNC: Final = frozenset({"asyncio", "concurrent", "trio", "anyio"})
IMPURE_CALLS: Final = frozenset({"open", "print", "input", "exec", "eval"})
# What makes an id, a time or chance out of nothing; `module.name` as written.
AMBIENT: Final = frozenset(
    {
        "time.time",
        "time.time_ns",
        "uuid.uuid1",
        "uuid.uuid4",
        "datetime.now",
        "datetime.utcnow",
        "datetime.today",
        "date.today",
        "os.urandom",
    }
)
AMBIENT_MODULES: Final = frozenset({"random", "secrets"})


_parse = lru_cache(ast.parse)


@attrs.frozen
class Module:
    name: str
    is_package: bool
    source: str

    @property
    def tree(self) -> ast.Module:
        return _parse(self.source)

    @property
    def folder(self) -> str:
        """The package that the module is in; its own name for a package."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def package(self) -> str:
        """The part of the namespace it belongs to: ``greenroom.<part>``."""
        return ".".join(self.name.split(".")[:2])

    @property
    def layer(self) -> str:
        part = self.name.split(".")[1]
        return part if part in LAYERS else "actors"


@attrs.frozen
class Import:
    target: str
    """Absolute name of the module, or of a name inside it."""
    source: str
    """Absolute name of the module that the names are taken from."""
    relative: bool
    line: int


def imports_of(module: Module) -> Iterator[Import]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(name.name, name.name, False, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(module, node)
            for name in node.names:
                target = f"{source}.{name.name}"
                yield Import(target, source, node.level > 0, node.lineno)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.folder.split(".")
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


#### The law


def problems(module: Module) -> list[str]:
    found = [*_naming_problems(module), *_ambient_problems(module)]
    for item in imports_of(module):
        found += [f"line {item.line}: {p}" for p in _import_problems(module, item)]
    if module.layer == "protocol":
        found += _impure_calls(module)
    return [f"{module.name}: {problem}" for problem in dict.fromkeys(found)]


def _naming_problems(module: Module) -> Iterator[str]:
    last = module.name.rpartition(".")[2].strip("_")
    if last in BANNED_NAMES:
        yield f"{last!r} says nothing about what is inside"
    if not ast.get_docstring(module.tree):
        yield "has no docstring"
    future = (item.target == "__future__.annotations" for item in imports_of(module))
    if len(module.tree.body) > 1 and not any(future):
        yield "lacks `from __future__ import annotations`"


def _import_problems(module: Module, item: Import) -> Iterator[str]:
    top = item.source.split(".")[0]
    if top == "greenroom":
        yield from _own_import_problems(module, item)
    elif top in sys.stdlib_module_names:
        yield from _stdlib_problems(module, top)
    elif top not in THIRD_PARTY[module.layer]:
        yield f"{module.layer} may not import {top}"


def _stdlib_problems(module: Module, top: str) -> Iterator[str]:
    if module.layer == "protocol" and top in IMPURE:
        yield f"protocol does no I/O and owns no clock or chance, imports {top}"
    if module.layer == "storage" and top in ASYNC:
        yield f"storage is synchronous, imports {top}"
    if top in AMBIENT_MODULES and module.name != CLOCK_MODULE:
        yield f"{top} belongs to {CLOCK_MODULE}"


def _own_import_problems(module: Module, item: Import) -> Iterator[str]:
    if item.source == "greenroom":
        item = attrs.evolve(item, source=item.target)
    same = _is_within(item.source, module.package)
    if item.relative and not same:
        yield f"import of {item.source} must be absolute"
    if same and not item.relative and not _is_sister_door(module, item.source):
        yield f"import of {item.source} must be relative"
    yield from _direction_problems(module, item, same)
    yield from _front_door_problems(module, item, same)


def _is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


# Sub-packages of one package are to each other what packages are: front doors.
def _is_sister_door(module: Module, source: str) -> bool:
    door = ".".join(source.split(".")[:3])
    return (
        door != module.package
        and not _is_within(module.folder, door)
        and not _is_private(door.rpartition(".")[2])
    )


def _direction_problems(module: Module, item: Import, same: bool) -> Iterator[str]:
    part = item.source.split(".")[1]
    allowed = LAYERS[: LAYERS.index(module.layer)]
    if module.layer == "actors" and module.package != "greenroom.actors":
        return
    if not same and part not in allowed:
        yield f"{module.package} may not import {item.source}"
    kernel = "greenroom.actors.kernel"
    if _is_within(module.folder, kernel) and not item.source.startswith(
        (kernel, "greenroom.protocol")
    ):
        yield f"the kernel knows nothing of {item.source}"


def _front_door_problems(module: Module, item: Import, same: bool) -> Iterator[str]:
    for name in {item.source, item.target}:
        parts = name.split(".")
        hidden = [i for i, part in enumerate(parts) if _is_private(part)]
        if not hidden:
            continue
        # A private module is for its own folder, and for what lies inside that.
        owner = ".".join(parts[: hidden[0]])
        if not (module.folder + ".").startswith(owner + "."):
            yield f"{name} is private to {owner}"
            return


def _is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def _ambient_problems(module: Module) -> Iterator[str]:
    if module.name == CLOCK_MODULE:
        return
    imported = {item.target for item in imports_of(module)}
    for name in sorted(imported & AMBIENT):
        yield f"{name} belongs to {CLOCK_MODULE}"
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Attribute):
            continue
        written = ast.unparse(node)
        if ".".join(written.split(".")[-2:]) in AMBIENT:
            yield f"line {node.lineno}: {written} belongs to {CLOCK_MODULE}"


def _impure_calls(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id in IMPURE_CALLS:
            yield f"line {node.lineno}: protocol may not call {node.func.id}()"


#### The project


def project_modules() -> list[Module]:
    found: list[Module] = []
    for layer in LAYERS:
        for path in sorted((ROOT / layer / "greenroom").rglob("*.py")):
            parts = path.relative_to(ROOT / layer).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            found.append(Module(name, is_package, path.read_text()))
    return found


HEAD: Final = '"""A module."""\nfrom __future__ import annotations\n'


def problems_of(name: str, body: str, is_package: bool = False) -> list[str]:
    return problems(Module(f"greenroom.{name}", is_package, HEAD + body))


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("protocol._run", "import trio"),
        ("protocol._run", "from pathlib import Path"),
        ("protocol._run", "import time"),
        ("protocol._run", "text = open('x').read()"),
        ("protocol._run", "import apsw"),
        ("protocol._run", "from greenroom.storage import Tape"),
        ("protocol._run", "from greenroom.protocol import Fact"),
        ("storage.tape", "import trio"),
        ("storage.tape", "from greenroom.actors import kernel"),
        ("storage.tape", "from greenroom.protocol._facts import Fact"),
        ("storage.tape", "import asyncio"),
        ("storage.tape", "import random"),
        ("actors.runs._loop", "import requests"),
        ("actors.runs._loop", "from ..kernel._ref import Ref"),
        ("actors.runs._loop", "from ..kernel import _ref"),
        ("actors.runs._loop", "from greenroom.actors.runs import Run"),
        ("actors.runs._loop", "from greenroom.actors.kernel._ref import Ref"),
        ("actors.writer", "from greenroom.actors import Writer"),
        ("storage.sqlite._open", "from greenroom.storage._store import Store"),
        ("protocol.acp.v1", "from ....storage import Tape"),
        ("actors.runs._loop", "from greenroom.engine import Engine"),
        ("actors.runs._loop", "import time\nnow = time.time()"),
        ("actors.runs._loop", "from uuid import uuid4"),
        ("actors.runs._loop", "import datetime\nnow = datetime.datetime.now()"),
        ("actors.kernel._ref", "from ..runs import Run"),
        ("actors.kernel._ref", "from greenroom.storage import Tape"),
        ("cli._main", "from greenroom.storage._store import Store"),
        ("cli._main", "import secrets"),
        ("actors.utils", ""),
        ("actors._helpers", ""),
    ],
)
def test_a_module_that_breaks_a_rule_is_found(name: str, body: str) -> None:
    assert problems_of(name, body)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("protocol._run", "import re\nimport attrs\nfrom ._facts import Fact"),
        ("protocol.acp.v1", "from .._facts import Fact"),
        ("storage.sqlite._open", "import os\nfrom greenroom.protocol.acp import Peer"),
        ("storage.sqlite._open", "from .._store import Store"),
        ("actors.runs._loop", "from ..kernel import Ref\nfrom ._cost import Cost"),
        ("actors.runs._loop", "from greenroom.storage import Tape\nimport httpx2"),
        ("actors.runs._loop", "from greenroom.actors.kernel import Ref"),
        ("actors.kernel._ref", "from greenroom.protocol import GreenroomError"),
        ("actors.kernel._clock", "import random, time\nnow = time.time()"),
        ("cli._main", "from greenroom.engine import open_engine"),
        ("cli._main", "import time\nstarted = time.monotonic()"),
    ],
)
def test_a_module_that_keeps_the_rules_passes(name: str, body: str) -> None:
    assert problems_of(name, body) == []


def test_a_package_is_the_folder_that_its_relative_imports_start_from() -> None:
    body = "from ._ref import Ref"
    package = Module("greenroom.actors.kernel", True, body)
    module = Module("greenroom.actors.kernel", False, body)

    assert [i.source for i in imports_of(package)] == ["greenroom.actors.kernel._ref"]
    assert [i.source for i in imports_of(module)] == ["greenroom.actors._ref"]


def test_a_module_without_a_docstring_is_found() -> None:
    source = "from __future__ import annotations\n"
    assert problems(Module("greenroom.actors.x", False, source))


def test_every_layer_has_modules() -> None:
    assert {module.layer for module in project_modules()} == set(LAYERS)


@pytest.mark.parametrize("module", project_modules(), ids=lambda module: module.name)
def test_the_project_keeps_every_rule(module: Module) -> None:
    assert problems(module) == []
