"""What a run begins with, gathered and put in force (RUN-07, TOL-23)."""

from __future__ import annotations

from typing import final

import attrs

from greenroom.actors.tools import ToolSet
from greenroom.protocol import Draft, ModelRequest

from ._active import ActiveRun, RunNotStartedError
from ._ports import Prepared, Refreshed, RunPlan, RunPorts


async def with_resources(active: ActiveRun, ports: RunPorts) -> RunPorts:
    """Gather what `RunPorts.prepare` brings, once, and return ports that have it.

    The plan's view and context have the instructions and the folders then. May be
    cancelled.

    Raises:
        RunNotStartedError: a run that lacks its resources does not begin (RUN-07).
    """
    plan, prepare = active.plan, ports.prepare
    if prepare is None:
        return ports
    ports.preparing("resources")
    try:
        prepared = await prepare(plan, ports.tools)
    except Exception as exc:
        raise RunNotStartedError(f"run {plan.run_id} can't start: {exc}") from exc
    first = prepared.at(active.draft.blocks)
    refresh = ports.refresh or _Renewed(prepared, active.draft, first)
    return adopt(plan, attrs.evolve(ports, refresh=refresh, prepare=None), first)


def adopt(plan: RunPlan, ports: RunPorts, fresh: Refreshed) -> RunPorts:
    """Go on with other tools, instructions and readable folders (TOL-23)."""
    plan.view.replace_system(fresh.instructions)
    plan.view.skills = fresh.skills
    if fresh.readable is not None:
        plan.context.readable.folders = fresh.readable
    return attrs.evolve(ports, tools=fresh.tools)


def request_of(plan: RunPlan, tools: ToolSet) -> ModelRequest:
    """Return the request that *plan*'s view makes now."""
    settings = plan.settings
    return ModelRequest(
        model=settings.model,
        messages=plan.view.messages,
        tools=tools.definitions,
        max_output_tokens=settings.max_output_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        reasoning_effort=settings.reasoning_effort,
        verbosity=settings.verbosity,
    )


@final
@attrs.define(eq=False)
class _Renewed:
    """A refresh from the run's own snapshot; quiet as long as nothing has changed."""

    prepared: Prepared
    draft: Draft
    last: Refreshed

    async def __call__(self) -> Refreshed | None:
        fresh = self.prepared.at(self.draft.blocks)
        if fresh == self.last:
            return None
        self.last = fresh
        return fresh
