"""What is installed: a namespace of typed packages, and nothing beside them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
SOURCE_ROOTS: Final = ("actors", "protocol", "storage")
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def packages() -> Iterator[Path]:
    for root in SOURCE_ROOTS:
        for folder in sorted((ROOT / root / "greenroom").iterdir()):
            if (folder / "__init__.py").exists():
                yield folder


# Type checkers look for the mark in each folder on the way to a module. Modules that
# lie beside the packages, as greenroom.engine does, have only the namespace's own.
def test_modules_beside_the_packages_are_typed_too() -> None:
    assert (ROOT / "actors/greenroom/py.typed").exists()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run([*command, "-d", folder], cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_greenroom_is_a_namespace_and_no_root_hides_another() -> None:
    assert [
        r for r in SOURCE_ROOTS if (ROOT / r / "greenroom/__init__.py").exists()
    ] == []
    assert import_module("greenroom").__file__ is None


def test_every_package_says_that_it_is_typed() -> None:
    found = list(packages())
    assert {"actors", "protocol", "storage", "cli"} <= {p.name for p in found}
    assert [p.name for p in found if not (p / "py.typed").exists()] == []


def test_the_wheel_holds_every_source_file_and_nothing_else(
    wheel: zipfile.ZipFile,
) -> None:
    sources = {
        path.relative_to(ROOT / root).as_posix()
        for root in SOURCE_ROOTS
        for path in (ROOT / root / "greenroom").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert held == sources
    assert "greenroom/protocol/py.typed" in held


def test_the_wheel_names_its_version_its_licence_and_its_command(
    wheel: zipfile.ZipFile,
) -> None:
    info = f"greenroom-{PROJECT['version']}.dist-info"

    assert f"{info}/licenses/LICENSE" in wheel.namelist()
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert f"\nVersion: {PROJECT['version']}\n" in metadata
    assert "\nRequires-Python: >=3.11\n" in metadata
    commands = wheel.read(f"{info}/entry_points.txt").decode()
    assert "greenroom = greenroom.cli:main" in commands


def test_the_installed_version_is_the_project_s() -> None:
    assert version("greenroom") == PROJECT["version"]


def test_the_installed_command_is_the_cli_s_main() -> None:
    (command,) = entry_points(group="console_scripts", name="greenroom")
    assert command.load() is import_module("greenroom.cli").main


def test_each_pin_is_a_name_and_a_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]

    assert [
        pin for pin in pins if not re.fullmatch(r"[a-z0-9_-]+==[a-z0-9.]+", pin)
    ] == []
    needed = {requirement.split(">=")[0] for requirement in PROJECT["dependencies"]}
    assert needed <= {pin.split("==")[0] for pin in pins}
