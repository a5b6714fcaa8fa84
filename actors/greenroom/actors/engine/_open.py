"""The opening of an engine: what it is made of, in the order in which that begins.

What dead owners left is settled before any actor lives. The end is the same order
backwards: actors, then whoever looked on, then the storage.
"""

from __future__ import annotations

import os
from collections.abc import (
    AsyncGenerator,
    Iterable,
    Mapping,
)
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import platformdirs

from greenroom.actors.agents import (
    AgentManager,
    NativeBackend,
)
from greenroom.actors.bindings import Bindings
from greenroom.actors.context import (
    CompactionSetup,
    Policies,
    Strategy,
    Summaries,
    Windows,
)
from greenroom.actors.hooks import (
    Hook,
    Hooks,
)
from greenroom.actors.imports import Imports
from greenroom.actors.kernel import (
    Clock,
    Ids,
    SystemClock,
    SystemIds,
    open_system,
)
from greenroom.actors.lifecycle import (
    Lifecycle,
    Stages,
    belongings_of,
    removes_folder,
)
from greenroom.actors.maintenance import (
    Maintenance,
)
from greenroom.actors.memory import (
    Contributions,
    Ingestion,
    MemoryPort,
    StoreMemory,
)
from greenroom.actors.observers import (
    Telemetry,
    open_observer,
    tell_both,
)
from greenroom.actors.opening import (
    lent_storage,
    make_ready,
    open_stages,
    own_storage,
    providers_by_id,
    rate_gates,
    take_up,
)
from greenroom.actors.prices import Prices
from greenroom.actors.providers import (
    Provider,
    RateLimit,
)
from greenroom.actors.runs import NativeRuns
from greenroom.actors.sessions import (
    Sessions,
    SessionWorld,
)
from greenroom.actors.skills import (
    Environment,
    InlineWork,
    Packages,
    Resources,
    Skills,
    ThreadWork,
)
from greenroom.actors.tools import (
    INLINE_CHARS,
    Tool,
    ToolRegistry,
    builtin_tools,
    recall_tools,
)
from greenroom.protocol.context import choose_policy
from greenroom.storage import (
    Store,
)

from ._engine import Engine

IDLE_SECONDS: Final = 1_200.0
"""After so long without work a session is unloaded."""

NOWHERE: Final = Path(os.devnull, "greenroom")
"""The state folder of an engine without one: a path that can't be made."""


def default_state() -> Path:
    """Return the state folder of this user, in the platform's data folder."""
    return Path(platformdirs.user_data_dir("greenroom", appauthor=False))


@asynccontextmanager
async def open_engine(
    *,
    state: Path | str | None = None,
    store: Store | None = None,
    provider: Provider | None = None,
    providers: Iterable[Provider] = (),
    rate_limits: Mapping[str, RateLimit] | None = None,
    tools: Iterable[Tool] = (),
    builtin: bool = True,
    program: str = "greenroom",
    environment: Mapping[str, str] | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
    idle_seconds: float | None = IDLE_SECONDS,
    inline_chars: int = INLINE_CHARS,
    gc_thresholds: bool = True,
    threads: bool = True,
    prices: Prices | None = None,
    windows: Windows | None = None,
    view_policy: str | None = None,
    compaction: Strategy | None = None,
    hooks: Iterable[Hook] = (),
    memory: MemoryPort | None = None,
    telemetry: Telemetry | None = None,
) -> AsyncGenerator[Engine]:
    """Open an engine on a state folder and close it again, bounded.

    Args:
        state: the folder; the platform's data folder when not given.
        store: where sessions are kept instead of there: a `MemoryStore` for an engine
            that writes no file. It is used on the loop, is left at the end and stays
            yours. Without a *state* beside it, output of a tool that is too long to
            be told whole is an error.
        provider: who answers; without one, turns end in an error that says so.
        providers: more of them; a session chooses by id.
        rate_limits: how often a provider may be asked, by its id; all sessions of
            this engine wait in one queue for it. Without one it is asked at once.
        tools: your own, beside the built-in ones.
        builtin: whether the built-in tools are offered.
        program: who this is, for other engines on the same folder.
        environment: what the shell tool may take its allow-listed part from.
        clock: time, for tests.
        ids: identities and chance, for tests.
        idle_seconds: after so long a session is unloaded; ``None``: never.
        inline_chars: longer output of tools that list is kept in a file, and the model
            reads a preview (TOL-16).
        gc_thresholds: whether the garbage collector is set for many small objects.
        threads: ``False`` keeps storage on the loop, for tests on a mock clock.
        prices: what models cost, for budgets and results; without them no cost is
            known.
        windows: how many tokens models take; without it what *prices* lists, and what
            providers say when they refuse a request.
        view_policy: how views are made, by name (CTX-06); one that does not exist is
            the default one, and manifests say so.
        compaction: what stands for the part of a long conversation that is no longer
            sent; without one a summary by the agent's assistant model, or the
            session's. `SlidingWindow` asks no model.
        hooks: who is told what happens (SKL-10). Nothing that a hook does changes a
            run; see `Hook` for its form, `CommandHook` and `Webhook` for ready ones.
        memory: how agents remember, if they do (``memoryEnabled``); without one, by the
            words of what was said (SKL-07, SKL-08).
        telemetry: who makes spans and metrics of what runs do: `OpenTelemetry` of
            `greenroom.otel`, say. Without one nothing is made.

    Raises:
        StorageError: the state can't be used; nothing was started.
    """
    folder = _folder(state, store)
    clock, ids = clock or SystemClock(), ids or SystemIds()
    by_id = providers_by_id(provider, providers)
    gates = rate_gates(by_id, rate_limits or {})
    registry = _registry(tools, builtin=builtin)
    # Before any actor lives: what dead owners left is settled, or nothing starts.
    if store is None:
        own, ready = await take_up(folder, program, clock, ids)
        storage = own_storage(own, folder, threads=threads)
    else:
        ready = await make_ready(store, program, clock, ids)
        storage = lent_storage(store, ready.member, clock)
    member = ready.member
    async with (
        storage as (writer, readers),
        open_observer(telemetry, clock) as observer,
        open_system(clock=clock, ids=ids, gc_thresholds=gc_thresholds) as system,
    ):
        parts = open_stages(system)
        tell_hooks = Hooks.start(hooks, parts["hooks"].spawn)
        agents = AgentManager(writer, readers, clock, ids)
        agents.belong(belongings_of(writer, clock.now))
        agents.migrated = ready.migrated
        await agents.begin()
        work = ThreadWork() if threads and store is None else InlineWork()
        skills = Skills(
            Packages(folder / "skills"), writer, readers, agents, clock, work
        )
        await skills.start(parts["skills"].spawn)
        if builtin:
            registry.reserve(*recall_tools(readers))
        recalls = memory or StoreMemory(readers)
        ingestion = Ingestion(recalls, agents, readers, writer, clock)
        ingestion.start(parts["memory"].spawn)
        prices = prices or Prices()
        windows = windows or Windows(listed=prices.context_window)
        world = SessionWorld(
            system=system,
            writer=writer,
            readers=readers,
            member=member,
            clock=clock,
            ids=ids,
            backend=NativeRuns(),
            providers=by_id,
            tools=registry.snapshot,
            scratch=folder / "scratch",
            environment=os.environ if environment is None else environment,
            idle_seconds=idle_seconds,
            inline_chars=inline_chars,
            cost=prices.cost,
            windows=windows,
            view_policy=choose_policy(view_policy),
            compaction=CompactionSetup(
                compaction or Summaries(clock.now, ids.random),
                Policies(agents, by_id, gates, windows).find,
                ids,
                clock.now,
                ingestion.after_compaction,
            ),
            gates=gates,
            tell_hooks=tell_both(tell_hooks, observer),
            prepare=Resources(skills, Environment(work)),
            contribute=Contributions(recalls, agents, system.reaper),
            turn_settled=ingestion.after_turn,
            admit=agents.admit_native,
            require=agents.require,
        )
        sessions = Sessions(world, parts["sessions"].spawn)
        agents.register("native", NativeBackend(sessions))
        stages = Stages(removes_folder(world.scratch))
        lifecycle = Lifecycle.of(sessions, agents, stages)
        await lifecycle.deletion.finish_pending()
        bindings = Bindings(writer, member, clock.now)
        yield Engine(
            folder,
            ready.recovered,
            system,
            sessions,
            readers,
            world,
            registry,
            agents,
            skills,
            bindings,
            Imports(writer, readers, member, agents, next(iter(by_id)), clock, ids),
            lifecycle,
            Maintenance(
                folder,
                member,
                clock,
                writer,
                readers,
                sessions,
                ingestion,
                parts["memory"],
                bindings,
                system.fail,
            ),
        )


def _folder(state: Path | str | None, store: Store | None) -> Path:
    if state is not None:
        return Path(state)
    return default_state() if store is None else NOWHERE


def _registry(tools: Iterable[Tool], *, builtin: bool) -> ToolRegistry:
    registry = ToolRegistry()
    if builtin:
        registry.contribute(*builtin_tools())
    registry.contribute(*tools)
    return registry
