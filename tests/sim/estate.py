"""What must be so of whole sessions: deleted, forked, given to another agent (DEL).

A deletion leaves nothing, also one that a death cut in two. A fork shares no identity
with anything. What a session is, is its agent's, all of it, at every entry of its tape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from sim.evidence import Evidence
from sim.notes import Notes

from greenroom.protocol import SessionSettings
from greenroom.storage import (
    SESSION_CONFIGURED,
    SESSION_FORKED,
    SqliteReader,
    pending_deletions,
)

PROMPTS: Final = {"default": "be yourself"}
"""Instructions of agents, by id."""
OTHER_PROMPT: Final = "be another"
SKILLS: Final = {"default": {"both", "own"}}
OTHER_SKILLS: Final = {"both"}
TABLES: Final = """
    SELECT t.name, upper(c.type) FROM sqlite_schema t, pragma_table_info(t.name) c
    WHERE t.type = 'table' AND c.name = 'session' AND t.name <> 'session_info'"""


def estate_problems(
    reader: SqliteReader, sessions: Mapping[str, Evidence], notes: Notes
) -> Iterator[str]:
    """Say which laws of whole sessions are broken."""
    if left := pending_deletions(reader):
        yield f"DEL-03: deletions were not finished: {left}"
    for scope in notes.deleted & sessions.keys():
        yield f"DEL-03: session {scope} was deleted, and is there"
    yield from _remains(reader, sessions)
    yield from _identity_problems(sessions)
    for session in sessions.values():
        if session.row is not None:
            yield from _settings_problems(session)
            yield from _selection_problems(reader, session, notes.first, sessions)


# A fork that a death cut off stays unlisted until the next sweep.
def _remains(reader: SqliteReader, sessions: Mapping[str, Evidence]) -> Iterator[str]:
    rows = reader.connection.execute("SELECT id, name FROM session").fetchall()
    known = [(number, name) for number, name in rows if name in sessions]
    for table, kind in reader.connection.execute(TABLES).fetchall():
        whose = {number if kind == "INTEGER" else name for number, name in known}
        column = f'SELECT DISTINCT session FROM "{table}"'
        for (scope,) in reader.connection.execute(column).fetchall():
            if scope not in whose:
                yield f"DEL-03: {table} has something of session {scope}, which is gone"


def _identity_problems(sessions: Mapping[str, Evidence]) -> Iterator[str]:
    owners: dict[str, str] = {}
    for session in sessions.values():
        for message in session.ever.values():
            ids = {block.id for block in message.blocks}
            if message.id not in ("next", "last"):
                ids |= {message.id}
            for each in ids - {f"{name}.0" for name in ("next", "last")}:
                if owners.setdefault(each, session.id) != session.id:
                    yield f"SES-23: {each} is in {session.id} and {owners[each]}"


def _settings_problems(session: Evidence) -> Iterator[str]:
    for entry in session.tape:
        if entry.fact.name != SESSION_CONFIGURED:
            continue
        settings = msgspec.json.decode(entry.fact.payload, type=SessionSettings)
        wanted = PROMPTS.get(settings.agent_id, OTHER_PROMPT)
        if settings.system_prompt != wanted:
            yield f"DEL-11: entry {entry.seq} has half of agent {settings.agent_id}"


def _selection_problems(
    reader: SqliteReader,
    session: Evidence,
    first: set[str],
    sessions: Mapping[str, Evidence],
) -> Iterator[str]:
    assert session.row is not None
    agent = session.row.settings.agent_id
    selected = set(reader.skill_selection(session.id))
    if more := selected - SKILLS.get(agent, OTHER_SKILLS):
        yield f"DEL-11: {session.id} of agent {agent} has selected {more}"
    if "both" not in selected and first & set(_line(session, sessions)):
        yield f"DEL-11: {session.id} has lost what it had selected"


# A fork, what it is of, and so on.
def _line(session: Evidence, sessions: Mapping[str, Evidence]) -> Iterator[str]:
    yield session.id
    for entry in session.tape[:2]:
        if entry.fact.name == SESSION_FORKED:
            source = msgspec.json.decode(entry.fact.payload)["sessionId"]
            if source in sessions:
                yield from _line(sessions[source], sessions)
            else:
                yield source
