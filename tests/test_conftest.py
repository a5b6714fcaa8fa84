"""The rules of conftest.py hold: pytest runs a small suite beside a copy of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.slow  # waits for other processes

CONFTEST: Final = Path(__file__).parent / "conftest.py"
BUSY: Final = """
import time

def spin():
    end = time.process_time() + 0.7
    while time.process_time() < end:
        pass

def test_busy():
    spin()
"""
SUITE: Final = {
    "test_busy.py": BUSY,
    "cli/test_busy_cli.py": BUSY,
    "end_to_end/test_busy_end.py": BUSY,
    "test_marked.py": BUSY + "\nimport pytest\npytestmark = pytest.mark.slow\n",
    "test_wrong.py": BUSY + "    assert 1 == 2\n",
    "test_idle.py": "import time\ndef test_idle(): time.sleep(0.2)\n",
    "test_quick.py": "def test_quick(): pass\n",
    "test_property.py": BUSY.replace(
        "def test_busy():",
        "from hypothesis import given, strategies as st\n"
        "@given(st.sampled_from([1]))\ndef test_busy(n):",
    ),
    "test_order.py": """
import trio
async def test_order():
    order = []
    async def note(name):
        for _ in range(40):
            await trio.lowlevel.checkpoint()
            order.append(name)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(note, "a")
        nursery.start_soon(note, "b")
    print("order", "".join(order))
""",
}


def run(folder: Path, *names: str, max_idle: str = "15.0") -> str:
    rules = CONFTEST.read_text()
    limit = "MAX_IDLE_SECONDS: Final = "
    assert f"{limit}15.0\n" in rules
    rules = rules.replace(f"{limit}15.0", f"{limit}{max_idle}")
    # The rule is shown with a smaller number: nobody has to be busy for seconds.
    assert "MAX_CPU_SECONDS: Final = 2.0\n" in rules
    rules = rules.replace(
        "MAX_CPU_SECONDS: Final = 2.0", "MAX_CPU_SECONDS: Final = 0.5"
    )
    (folder / "conftest.py").write_text(rules)
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(SUITE[name])
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider"]
    command += ["-c", "/dev/null", "--rootdir", str(folder), "-o", "trio_mode=true"]
    done = subprocess.run(
        [*command, *names], cwd=folder, capture_output=True, text=True, timeout=60
    )
    return done.stdout


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    return run(tmp_path_factory.mktemp("suite"), *SUITE)


def test_a_test_that_works_for_too_long_fails(shown: str) -> None:
    assert "FAILED test_busy.py::test_busy - Failed: used 0.7" in shown
    assert "of processor time, more than 0.50 s: make it smaller" in shown


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_test_that_sleeps_fails(tmp_path: Path) -> None:
    shown = run(tmp_path, "test_idle.py", max_idle="0.1")

    assert "FAILED test_idle.py::test_idle - Failed: was idle for 0." in shown
    assert "it sleeps or waits for a real time-out" in shown


@pytest.mark.parametrize(
    "name",
    [
        "cli/test_busy_cli.py::test_busy",
        "end_to_end/test_busy_end.py::test_busy",
        "test_marked.py::test_busy",
        "test_property.py::test_busy",
        "test_quick.py::test_quick",
    ],
)
def test_some_tests_may_take_longer(shown: str, name: str) -> None:
    assert f"PASSED {name}" in shown


def test_a_test_that_is_wrong_and_busy_reports_what_is_wrong(shown: str) -> None:
    assert "FAILED test_wrong.py::test_busy - assert 1 == 2" in shown


def test_the_order_of_trio_s_tasks_is_the_same_in_each_run(
    shown: str, tmp_path: Path
) -> None:
    again = run(tmp_path, "test_order.py")

    assert "order " in again
    orders = [
        [line for line in text.splitlines() if line.startswith("order ")]
        for text in (shown, again)
    ]
    assert orders[0] == orders[1]
    assert "ab" in orders[0][0]
    assert "ba" in orders[0][0]
