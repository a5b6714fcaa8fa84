"""The instructions of a run: what they are made of, and in which order (SKL-09).

The agent's own words, what its workspace says, its Skills, how to use its tools. The
same parts make the same text, byte for byte, so that a provider's cache holds for all
rounds of a turn; what is not there leaves no trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from ._canonical import safe_text


@attrs.frozen
class SkillNote:
    """What a run is told of one Skill."""

    name: str
    description: str
    folder: str
    """Where its files are."""
    instructions: str | None = None
    """All of it, when the Skill is in use; ``None``: it can be put to use."""


@attrs.frozen
class PromptParts:
    """Everything that instructions are made of."""

    agent: str
    """The agent's prompt."""
    environment: str = ""
    """What the workspace says."""
    skills: Sequence[SkillNote] = ()
    guidance: Sequence[str] = ()
    """How to use tools, a paragraph for each."""
    delegation: str = ""
    """How to have others work."""
    proactive: bool = False
    """Whether the agent is to delegate of its own accord; else *delegation* is not
    said."""


_ENVIRONMENT: Final = (
    "# The workspace\n\nThe workspace says this in its AGENTS.md. Follow it where it"
    " does not contradict what stands above.\n\n"
)
_IN_USE: Final = (
    "\n\nThe files of this Skill are in {folder}; file tools can read them.\n\n"
)


def assemble_prompt(parts: PromptParts) -> str:
    """Return the instructions; the agent's own text when there is nothing else."""
    sections = [parts.agent.strip("\n") if parts.agent.strip() else ""]
    if parts.environment.strip():
        sections.append(_ENVIRONMENT + parts.environment.strip())
    sections += _skills(sorted(parts.skills, key=lambda note: note.name))
    told = (*parts.guidance, parts.delegation if parts.proactive else "")
    guidance = [text.strip() for text in told if text.strip()]
    if guidance:
        sections.append("# Tools\n\n" + "\n\n".join(guidance))
    if not any(sections[1:]):
        return parts.agent
    return safe_text("\n\n".join(section for section in sections if section))


def _skills(notes: Sequence[SkillNote]) -> list[str]:
    offered = [note for note in notes if note.instructions is None]
    used = [note for note in notes if note.instructions is not None]
    sections: list[str] = []
    if offered:
        lines = [f"- {note.name}: {_line(note.description)}" for note in offered]
        sections.append("# Skills that can be put to use\n\n" + "\n".join(lines))
    for note in used:
        head = f"# Skill in use: {note.name}\n\n{_line(note.description)}"
        where = _IN_USE.format(folder=note.folder)
        sections.append(head + where + (note.instructions or ""))
    return sections


def _line(text: str) -> str:
    return " ".join(text.split())
