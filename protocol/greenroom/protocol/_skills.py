"""Skills: what a package says of itself, who may use it, and how that changes.

A package is global, one folder for each Skill. What an agent may use is its bindings;
a missing binding is a disabled one (SKL-01). What a session uses is what it selected
of that, and nothing else: the list of packages grants nothing (SKL-02). All pure; the
folder and the state are read and written elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal

import attrs
import msgspec

from ._canonical import safe_text
from ._errors import GreenroomError

MAX_SKILLS: Final = 500
"""Packages in one state folder."""

MAX_EXTENSION_BYTES: Final = 16 << 10
"""What one binding keeps for others, as JSON."""

MAX_SKILL_DESCRIPTION: Final = 1_024
MAX_SKILL_TEXT: Final = 60_000
"""Characters of a ``SKILL.md``."""

_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_MAX_NAME: Final = 64
_KEY: Final = re.compile(r"([A-Za-z][\w-]*):(?:[ \t]+(.*))?")


class SkillError(GreenroomError):
    """A Skill can't be read or changed as was asked; nothing was changed.

    ``code`` is one of ``invalid_skill``, ``skill_exists``, ``skill_not_found``,
    ``not_native``, ``bindings_changed``, ``too_many_skills``, ``skill_io``.
    """

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        if hint is not None:
            self.hint = hint


#### A package


@attrs.frozen
class SkillText:
    """A ``SKILL.md``: its front matter and its instructions."""

    name: str
    """What the front matter says; the folder's name is what counts."""
    description: str
    instructions: str


def is_skill_name(name: str) -> bool:
    """Whether *name* is one: lower-case words of letters and digits, with hyphens."""
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None


def parse_skill(text: str) -> SkillText:
    """Return what a ``SKILL.md`` says.

    Raises:
        SkillError: ``invalid_skill``; there is no front matter, or it lacks a name or
            a description.
    """
    text = safe_text(text.removeprefix("\ufeff")).replace("\r\n", "\n")
    if len(text) > MAX_SKILL_TEXT:
        raise _invalid(f"it has more than {MAX_SKILL_TEXT} characters")
    lines = text.split("\n")
    if lines[0].strip() != "---" or "---" not in [line.strip() for line in lines[1:]]:
        raise _invalid("it does not begin with front matter between two lines of ---")
    end = next(n for n, line in enumerate(lines[1:], 1) if line.strip() == "---")
    members = _front_matter(lines[1:end])
    name, description = members.get("name", ""), members.get("description", "")
    if not is_skill_name(name):
        raise _invalid(
            f"its name {name[:80]!r} is not lower-case words with hyphens between"
        )
    if not description.strip():
        raise _invalid("it has no description")
    if len(description) > MAX_SKILL_DESCRIPTION:
        raise _invalid(
            f"its description has more than {MAX_SKILL_DESCRIPTION} characters"
        )
    return SkillText(name, description, "\n".join(lines[end + 1 :]).strip())


def _front_matter(lines: Iterable[str]) -> dict[str, str]:
    # The part of YAML that front matter is made of in the field: plain and quoted
    # scalars, and texts that go on in indented lines. Other members are let be.
    members: dict[str, str] = {}
    key = ""
    for line in lines:
        found = _KEY.fullmatch(line.rstrip())
        if found is not None and not line[:1].isspace():
            key = found[1]
            value = (found[2] or "").strip()
            members[key] = "" if value in (">", "|", ">-", "|-") else _scalar(value)
        elif key and line.strip() and line[:1].isspace():
            members[key] = f"{members[key]} {line.strip()}".strip()
    return members


def _scalar(value: str) -> str:
    for quote in ("'", '"'):
        if len(value) >= 2 and value[0] == value[-1] == quote:
            return value[1:-1]
    return value


def _invalid(problem: str) -> SkillError:
    return SkillError(
        "invalid_skill",
        f"the SKILL.md can't be used: {problem}",
        hint="begin it with ---, name: and description: lines, and --- again",
    )


#### The state of management, version 3


class SkillRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A package that is managed."""

    name: str
    path: str
    """Below the folder of packages."""
    source: str
    """Where it came from, for people."""


class SkillBinding(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True
):
    """What an agent has of a Skill; without one it has nothing."""

    assigned: bool = False
    extension: dict[str, Any] = {}
    """Kept for others, also while the Skill is not assigned (SKL-04)."""


class AgentSkills(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The bindings of one agent."""

    bindings: dict[str, SkillBinding] = {}


class SkillState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is managed; replaced as a whole."""

    version: Literal[3] = 3
    skills: dict[str, SkillRecord] = {}
    agents: dict[str, AgentSkills] = {}


def bindings_of(state: SkillState, agent_id: str) -> Mapping[str, SkillBinding]:
    """Return the bindings of an agent."""
    found = state.agents.get(agent_id)
    return {} if found is None else found.bindings


def holders(state: SkillState, name: str) -> tuple[str, ...]:
    """Return the agents that a Skill is assigned to, sorted."""
    return tuple(
        sorted(
            agent_id
            for agent_id, agent in state.agents.items()
            if name in agent.bindings and agent.bindings[name].assigned
        )
    )


def catalogue_of(
    state: SkillState,
    available: Collection[str],
    agent_id: str,
    allowed: Collection[str] | None,
) -> frozenset[str]:
    """Return what an agent may use: what is there, managed and assigned (SKL-02).

    *allowed* is the agent's own list; ``None`` means that it has none.
    """
    return frozenset(
        name
        for name, binding in bindings_of(state, agent_id).items()
        if binding.assigned
        and name in state.skills
        and name in available
        and (allowed is None or name in allowed)
    )


def effective_skills(
    selection: Iterable[str], catalogue: Collection[str]
) -> tuple[str, ...]:
    """Return what a session uses: what it selected of the catalogue, sorted."""
    return tuple(sorted(set(selection) & set(catalogue)))


#### Changes of it


def with_skill(state: SkillState, record: SkillRecord) -> SkillState:
    """Return *state* with a package that is managed from now on.

    Raises:
        SkillError: ``too_many_skills``.
    """
    if record.name not in state.skills and len(state.skills) >= MAX_SKILLS:
        raise SkillError(
            "too_many_skills",
            f"{len(state.skills)} Skills are there already, at most {MAX_SKILLS} are",
            hint="remove some that nobody uses (greenroom skills list)",
        )
    skills = state.skills | {record.name: record}
    return msgspec.structs.replace(state, skills=skills)


def with_binding(
    state: SkillState,
    agent_id: str,
    name: str,
    *,
    assigned: bool | None = None,
    extension: dict[str, Any] | None = None,
) -> SkillState:
    """Return *state* with a changed binding; what is not given stays as it is.

    Raises:
        SkillError: ``skill_not_found``, or an extension that is too large.
    """
    if name not in state.skills:
        raise unknown_skill(name)
    size = len(msgspec.json.encode(extension)) if extension else 0
    if size > MAX_EXTENSION_BYTES:
        raise SkillError(
            "invalid_skill",
            f"the extension of a binding has {size} bytes, more than"
            f" {MAX_EXTENSION_BYTES}",
        )
    bindings = dict(bindings_of(state, agent_id))
    old = bindings.get(name, SkillBinding())
    bindings[name] = SkillBinding(
        assigned=old.assigned if assigned is None else assigned,
        extension=old.extension if extension is None else extension,
    )
    return _with_agent(state, agent_id, bindings)


def without_skill(state: SkillState, name: str) -> SkillState:
    """Return *state* without a Skill and without its bindings."""
    agents = {
        agent_id: AgentSkills(
            bindings={k: v for k, v in agent.bindings.items() if k != name}
        )
        for agent_id, agent in state.agents.items()
    }
    skills = {key: value for key, value in state.skills.items() if key != name}
    kept = {key: value for key, value in agents.items() if value.bindings}
    return msgspec.structs.replace(state, skills=skills, agents=kept)


def with_only_agents(state: SkillState, known: Collection[str]) -> SkillState:
    """Return *state* without bindings of agents that are not among *known*."""
    agents = {key: value for key, value in state.agents.items() if key in known}
    return msgspec.structs.replace(state, agents=agents)


def _with_agent(
    state: SkillState, agent_id: str, bindings: dict[str, SkillBinding]
) -> SkillState:
    agents = state.agents | {agent_id: AgentSkills(bindings=bindings)}
    return msgspec.structs.replace(state, agents=agents)


def unknown_skill(name: str) -> SkillError:
    """Return the error that there is no Skill *name*."""
    return SkillError(
        "skill_not_found",
        f"there is no Skill {name[:80]!r}",
        hint="greenroom skills list shows the Skills",
    )
