"""What the documents say about the project is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from greenroom.actors.providers import Call, Halt, RehearsalProvider, Say
from greenroom.cli._config import KEYS
from greenroom.cli._exit import EXIT_CODE_HELP, ExitCode

ROOT: Final = Path(__file__).parent.parent
README: Final = (ROOT / "README.md").read_text()
DOCUMENTS: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK: Final = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def rows(document: str, head: str) -> list[list[str]]:
    """Return the cells of the table whose first head is *head*."""
    _, table = document.split(f"\n| {head} |", 1)
    lines = table.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_inside_the_project_leads_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text())
    local = [link for link in links if not link.startswith("http")]

    assert [link for link in local if not (document.parent / link).exists()] == []


def test_the_readme_lists_every_setting() -> None:
    named = [re.findall(r"`(\w+)`", row[0]) for row in rows(README, "key")]

    assert [key for keys in named for key in keys] == list(KEYS)


def test_the_readme_lists_every_exit_status_as_the_help_does() -> None:
    listed = {
        int(code): text.replace("`", "") for code, text in rows(README, "exit status")
    }

    assert list(listed) == list(ExitCode)
    helped = re.findall(r"^  (\d+) +(.+)$", EXIT_CODE_HELP, re.MULTILINE)
    assert listed == {int(code): text for code, text in helped}


async def test_the_readme_s_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    provider = RehearsalProvider(
        [
            [Call("weather", {"city": "Bergen"}), Halt("tool_use")],
            [Say("Take one."), Halt()],
        ]
    )

    monkeypatch.chdir(tmp_path)
    await names["main"](provider)

    assert capsys.readouterr().out.startswith("Take one. completed complete")


async def test_the_guide_s_test_of_one_s_own_passes(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    guide = (ROOT / "docs" / "embedding.md").read_text()
    (example,) = re.findall(r"```python\n(from .+?)```", guide, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "embedding.md", "exec"), names)

    await names["test_it_mails_only_after_a_yes"](tmp_path, nursery)
