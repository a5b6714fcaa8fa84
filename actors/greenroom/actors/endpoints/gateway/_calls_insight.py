"""Calls that look into the engine, and those about its agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import trio

from greenroom.actors.agents import AgentManager
from greenroom.actors.kernel import ActorInfo
from greenroom.protocol import (
    AgentNotFoundError,
    AgentRefusedError,
    SessionId,
    catalogue_entry,
    holders,
)
from greenroom.protocol.gateway import (
    MAX_PAGE,
    ActorItem,
    ActorTree,
    AddAgent,
    AgentList,
    AgentRef,
    JournalEntry,
    JournalPage,
    ListAgents,
    ListSkills,
    NoParams,
    Nothing,
    OneAgent,
    ReadJournal,
    SetAgent,
    SkillItem,
    SkillList,
    agent_dto,
    dto_kind,
)
from greenroom.storage import Reader

from ._calls_sessions import fill, row_of
from ._ports import EnginePort, Handler
from ._timeline import journal_entry

MAX_ACTORS: Final = 2_000
"""Of a tree, as many as go into a frame with ease."""

_WINDOW: Final = 500
"""Entries of a tape that are read at once, and of which a page is made."""

_WINDOWS: Final = 40
"""Windows that one call looks through for the entries of one run."""


#### Agents


async def _agents(engine: EnginePort, asked: ListAgents) -> AgentList:
    entries = sorted(await engine.agents.list(), key=lambda entry: entry.id)
    after = asked.after or ""
    rows = [agent_dto(entry) for entry in entries if entry.id > after]
    page = fill(rows[:MAX_PAGE])
    more = page[-1].id if len(page) < len(rows) else None
    return AgentList(tuple(page), more)


async def _agent(engine: EnginePort, asked: AgentRef) -> OneAgent:
    return await _agent_of(engine, asked.agent_id)


async def _agent_of(engine: EnginePort, agent_id: str) -> OneAgent:
    row = await engine.read(lambda reader: reader.agent(agent_id))
    if row is None:
        raise AgentNotFoundError(agent_id)
    return OneAgent(agent_dto(catalogue_entry(row)))


async def _add_agent(engine: EnginePort, asked: AddAgent) -> OneAgent:
    agents = engine.agents
    made = await (_add_acp if _kind_of(asked) == "acp" else _add_native)(agents, asked)
    return await _agent_of(engine, made)


def _kind_of(asked: AddAgent) -> str:
    if not asked.names_kind:
        return "native" if asked.command is None else "acp"
    return dto_kind(msgspec.json.encode(asked))


async def _add_acp(agents: AgentManager, asked: AddAgent) -> str:
    if asked.config is not None:
        raise _misfit("config", "is of native agents, and this one has a command")
    return await agents.create_acp(
        asked.name,
        asked.command or "",
        asked.args,
        asked.env,
        description=asked.description,
    )


async def _add_native(agents: AgentManager, asked: AddAgent) -> str:
    if asked.command is not None or asked.args or asked.env:
        raise _misfit("command", "is of agents in a process of their own")
    return await agents.create(
        asked.name, config=asked.config, description=asked.description
    )


def _misfit(field: str, problem: str) -> AgentRefusedError:
    return AgentRefusedError("invalid_patch", f"{field} {problem}", hint=None)


async def _set_agent(engine: EnginePort, asked: SetAgent) -> OneAgent:
    if asked.config is not None:
        await engine.agents.update(asked.agent_id, asked.config)
    told = (asked.name, asked.description, asked.icon, asked.enabled)
    if any(value is not None for value in told):
        await engine.agents.describe(
            asked.agent_id,
            name=asked.name,
            description=asked.description,
            icon=asked.icon,
            enabled=asked.enabled,
        )
    return await _agent_of(engine, asked.agent_id)


async def _reset_agent(engine: EnginePort, asked: AgentRef) -> OneAgent:
    await engine.agents.reset(asked.agent_id)
    return await _agent_of(engine, asked.agent_id)


async def _remove_agent(engine: EnginePort, asked: AgentRef) -> Nothing:
    await engine.agents.remove(asked.agent_id)
    return Nothing()


async def _skills(engine: EnginePort, asked: ListSkills) -> SkillList:
    state, found = await engine.skills.state(), await engine.skills.packages()
    after = asked.after or ""
    names = sorted(name for name in state.skills if name > after)
    page = fill(
        SkillItem(
            name=name,
            description=found[name].text.description if name in found else None,
            agents=tuple(holders(state, name))[:MAX_PAGE],
        )
        for name in names[:MAX_PAGE]
    )
    return SkillList(tuple(page), page[-1].name if len(page) < len(names) else None)


#### The engine


async def _tree(engine: EnginePort, asked: NoParams) -> ActorTree:
    infos, now = engine.tree(), trio.current_time()
    shown = tuple(_actor(info, now) for info in infos[:MAX_ACTORS])
    return ActorTree(shown, len(infos) - len(shown))


def _actor(info: ActorInfo, now: float) -> ActorItem:
    return ActorItem(
        path=info.path,
        grade=info.grade,
        state=info.state,
        age=max(0.0, now - info.since),
        work=info.work,
        control=info.control,
        current=info.current,
        remaining=None if info.deadline is None else max(0.0, info.deadline - now),
        cancel_cause=None if info.cancel_cause is None else info.cancel_cause.value,
        restarts=info.restarts,
    )


#### The journal


async def _journal(engine: EnginePort, asked: ReadJournal) -> JournalPage:
    row = await row_of(engine, asked.session_id)
    end = row.head + 1 if asked.before is None else min(asked.before, row.head + 1)
    for _ in range(_WINDOWS):
        start = max(1, end - _WINDOW)
        found = await _window(engine, row.id, start, end, asked.run_id)
        end = start
        if found or start == 1:
            return JournalPage(tuple(found), None if start == 1 else start)
    return JournalPage((), end)


async def _window(
    engine: EnginePort, scope: SessionId, start: int, end: int, run_id: str | None
) -> list[JournalEntry]:
    # From entry *start* to before *end*, however many pages of the tape that takes.
    def read(reader: Reader) -> list[JournalEntry]:
        found: list[JournalEntry] = []
        after = start - 1
        while after < end - 1:
            entries = reader.page(scope, after, end - 1 - after).entries
            if not entries:
                break
            after = entries[-1].seq
            told = (journal_entry(entry) for entry in entries)
            found += [each for each in told if each is not None]
        return found

    entries = await engine.read(read)
    return [each for each in entries if run_id in (None, each.run_id)]


INSIGHT: Final[Mapping[str, Handler]] = {
    "_greenroom/agent/list": _agents,
    "_greenroom/agent/get": _agent,
    "_greenroom/agent/add": _add_agent,
    "_greenroom/agent/set": _set_agent,
    "_greenroom/agent/reset": _reset_agent,
    "_greenroom/agent/remove": _remove_agent,
    "_greenroom/skill/list": _skills,
    "_greenroom/tree": _tree,
    "_greenroom/journal": _journal,
}
