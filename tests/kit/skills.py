"""Skills to test with: packages on disk, and what a request said of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kit.rehearsal import Stage

from greenroom.protocol import SystemMessage


def package(folder: Path, name: str, says: str = "", **files: str) -> Path:
    """Make a package called *name* in *folder*, whose instructions are *says*."""
    root = folder / name
    root.mkdir(parents=True)
    text = (
        f"---\nname: {name}\ndescription: About {name}.\n---\n{says or f'Do {name}.'}"
    )
    (root / "SKILL.md").write_text(text)
    for file, content in files.items():
        (root / f"{file}.txt").write_text(content)
    return root


def edit(folder: Path, says: str) -> None:
    """Change the instructions of a package, so that it shows."""
    file = folder / "SKILL.md"
    head = file.read_text().rsplit("---\n", 1)[0]
    before = file.stat().st_mtime_ns
    file.write_text(f"{head}---\n{says}")
    os.utime(file, ns=(before + 1_000_000, before + 1_000_000))


async def offer(
    stage: Stage, folder: Path, *names: str, agent: str = "default"
) -> None:
    """Add packages that are not there yet, and bind them to *agent*."""
    state = await stage.engine.skills.state()
    for name in names:
        if name not in state.skills:
            await stage.engine.skills.add(package(folder / "sources", name))
        await stage.engine.skills.bind(agent, name)


def system(request: Any) -> str:
    """The instructions of a request."""
    found = [m.text for m in request.messages if isinstance(m, SystemMessage)]
    return found[0] if found else ""


def tools(request: Any) -> list[str]:
    """The names of its tools."""
    return [definition.name for definition in request.tools]
