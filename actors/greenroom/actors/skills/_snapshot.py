"""What a run begins with: its agent's Skills, its workspace's words, its tools.

Taken once, before the run's start fact (RUN-07). Nothing that is bound, unbound or
edited afterwards reaches the run; the next one sees it (SKL-03). A part that can't be
had is left out and logged: it can only grant less.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

import attrs

from greenroom.actors.backend import Prepared, Refreshed, RunPlan
from greenroom.actors.tools import ToolSet
from greenroom.protocol import (
    Block,
    GreenroomError,
    PromptParts,
    SkillContext,
    SkillNote,
    assemble_prompt,
    sha256_hex,
)

from ._activation import ACTIVATE, GUIDANCE, activated, activation_tool
from ._environment import Environment
from ._packages import Package
from ._service import Skills, SkillView

_LOG: Final = logging.getLogger("greenroom.skills")


@final
@attrs.frozen(eq=False)
class Resources:
    """Takes the snapshot of each run; the `prepare` port of runs."""

    skills: Skills
    environment: Environment

    async def __call__(self, plan: RunPlan, tools: ToolSet) -> Prepared:
        """See `greenroom.actors.backend.Prepare`."""
        view = await self._skills(plan)
        said = await self.environment.instructions(plan.context.workspace)
        settings = plan.settings
        return Snapshot.take(
            settings.system_prompt, said, view, tools, settings.disabled_tools
        )

    async def _skills(self, plan: RunPlan) -> SkillView:
        try:
            return await self.skills.view(plan.settings.agent_id, plan.session_id)
        except GreenroomError as exc:
            _LOG.warning("run %s begins without Skills: %s", plan.run_id, exc)
            return SkillView()


@final
@attrs.frozen(eq=False)
class Snapshot:
    """The Skills of one run, and what they make of its tools and instructions."""

    prompt: str
    said: str
    view: SkillView
    tools: ToolSet

    @classmethod
    def take(
        cls,
        prompt: str,
        said: str,
        view: SkillView,
        tools: ToolSet,
        disabled: Sequence[str] = (),
    ) -> Snapshot:
        """Return the snapshot of these; *disabled* are tools it must not have."""
        activation = activation_tool(view.catalogue.__contains__)
        offered = tools.including(activation) if view.catalogue else tools
        return cls(prompt, said, view, offered.without(disabled))

    def at(self, blocks: Sequence[Block]) -> Refreshed:
        """See `greenroom.actors.backend.Prepared`."""
        catalogue = self.view.catalogue
        used = (set(self.view.effective) | activated(blocks)) & catalogue.keys()
        notes = [_note(each, used=each.name in used) for each in catalogue.values()]
        is_offered = any(each.name == ACTIVATE for each in self.tools.definitions)
        guidance = [GUIDANCE] if catalogue and is_offered else []
        parts = PromptParts(self.prompt, self.said, notes, guidance)
        skills = tuple(
            SkillContext(
                name=name, content_hash=sha256_hex(catalogue[name].text.instructions)
            )
            for name in sorted(used)
        )
        roots = _roots(catalogue, used)
        return Refreshed(self.tools, assemble_prompt(parts), roots, skills)


def _note(package: Package, *, used: bool) -> SkillNote:
    text = package.text
    return SkillNote(
        package.name,
        text.description,
        str(package.root),
        text.instructions if used else None,
    )


def _roots(catalogue: dict[str, Package], used: set[str]) -> tuple[Path, ...]:
    return tuple(catalogue[name].root for name in sorted(used))
