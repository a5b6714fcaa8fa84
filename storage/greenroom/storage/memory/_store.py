"""The store in plain Python: the same contract, no disk.

For tests, evaluations and engines that keep nothing. One instance is one database;
several members may share it. Whether a member's process lives is for the owner of
the instance to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, final

import attrs

from greenroom.protocol import (
    AgentRow,
    AttemptTrace,
    Chunk,
    Fact,
    IngestMark,
    JournalRecord,
    MessageId,
    MessageRecord,
    PendingInputs,
    Plan,
    Recollection,
    RunId,
    RunStarted,
    SessionId,
    TapeEntry,
    journal_fact,
)

from .._admission import (
    MAX_APPEND_ID,
    MAX_IDENTITY,
    check_bootstrap,
    check_command,
    check_facts,
    check_json,
    check_member,
    check_session_id,
    check_text,
    check_trace,
)
from .._agent_rules import check_agent, check_app_setting
from .._errors import full_inbox
from .._journal_rules import (
    check_bootstrapped,
    check_prerequisites,
    is_repeat,
    needed_keys,
)
from .._limits import (
    MAX_ENTRIES,
    MAX_HITS,
    MAX_MESSAGE_HITS,
    MAX_ROWS,
    MAX_TRACES,
    clamp,
    within_page,
)
from .._skill_rules import check_recollections, check_selection
from .._store import (
    MAX_OPEN_COMMANDS,
    Appended,
    Fenced,
    Grant,
    HeadMoved,
    Held,
    InboxCommand,
    Member,
    MemberLost,
    MessageHit,
    OpenRun,
    Owner,
    Page,
    Piece,
    Posted,
    Receipt,
    Seen,
    SessionRow,
    Settled,
)
from .._words import folded, holds, query_words, said, snippet_of
from ..names import check_findable
from ._agents import AgentTables
from ._groups import Writes
from ._replica import Replica
from ._skills import SkillTables
from ._tables import Command, Hot, Joined, Tables
from ._traces import kept_traces, last_request, old_traces, put_trace
from ._undo import Undo


def _every_process_lives(member_id: str) -> bool:
    return True


@final
@attrs.define(eq=False, repr=False)
class MemoryStore:
    """See `Store`."""

    _tables: Tables
    _writes: Writes
    _agents: AgentTables
    _skills: SkillTables
    _joined: int = 0
    """Members so far: their ids are never used again."""

    @classmethod
    def create(cls, lives: Callable[[str], bool] = _every_process_lives) -> MemoryStore:
        """Make an empty one; *lives* says whether the process of a member lives."""
        tables = Tables(lives)
        return cls(
            tables,
            Writes(tables.undo),
            AgentTables(tables.undo),
            SkillTables(tables.undo),
        )

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self._tables.sessions)} sessions>"

    #### Reads

    def page(
        self, scope: SessionId, after: int, limit: int = 256, stream: str | None = None
    ) -> Page:
        """See `Reader.page`."""
        head = self._tables.hot.get(scope, Hot()).head
        if head == 0:
            return Page((), 0)
        found: list[TapeEntry] = []
        entries = self._tables.sessions[scope].entries
        for seq in range(max(after, 0) + 1, head + 1):
            if stream in (None, entries[seq].fact.stream):
                found.append(entries[seq])
            if len(found) == clamp(limit, MAX_ENTRIES):
                break
        return Page(within_page(found), head)

    def scopes(
        self, after: SessionId | None = None, limit: int = 256
    ) -> list[SessionId]:
        """See `Reader.scopes`."""
        names = sorted(s for s, hot in self._tables.hot.items() if hot.head)
        return [s for s in names if s > (after or "")][: clamp(limit, MAX_ENTRIES)]

    def heads(self, scopes: Sequence[SessionId]) -> list[tuple[SessionId, int]]:
        """See `Reader.heads`."""
        found = [(scope, self._tables.hot.get(scope, Hot()).head) for scope in scopes]
        return [(scope, head) for scope, head in found if head]

    def locate(self, scope: SessionId) -> Owner | None:
        """See `Reader.locate`."""
        owner = self._tables.hot.get(scope, Hot()).owner
        return None if owner is None else self._tables.owner(owner)

    def search(
        self, query: str, *, scope_prefix: str = "", limit: int = 20
    ) -> list[tuple[SessionId, int]]:
        """See `Reader.search`."""
        words = query_words(query)
        if not words:
            return []
        hits = [
            entry
            for scope, session in self._tables.sessions.items()
            if scope.startswith(scope_prefix)
            for entry, text in session.searchable()
            if holds(text, words)
        ]
        hits.sort(key=lambda entry: (-entry.created_at, entry.session_id, -entry.seq))
        return [(hit.session_id, hit.seq) for hit in hits[: clamp(limit, MAX_HITS)]]

    def search_tape(
        self, scope: SessionId, query: str, *, until: int | None = None, limit: int = 20
    ) -> list[int]:
        """See `Reader.search_tape`."""
        words, session = query_words(query), self._tables.sessions.get(scope)
        if not words or session is None:
            return []
        hits = [
            entry.seq
            for entry, text in session.searchable()
            if (until is None or entry.seq <= until) and holds(text, words)
        ]
        return sorted(hits, reverse=True)[: clamp(limit, MAX_HITS)]

    def named(
        self, scope: SessionId, name: str, *, before: int | None = None, limit: int = 20
    ) -> list[TapeEntry]:
        """See `Reader.named`."""
        check_findable(name)
        session = self._tables.sessions.get(scope)
        entries = () if session is None else session.entries.values()
        found = [
            entry
            for entry in entries
            if entry.fact.name == name and (before is None or entry.seq < before)
        ]
        found.sort(key=lambda entry: entry.seq, reverse=True)
        return found[: clamp(limit, MAX_ROWS)]

    def search_messages(
        self, query: str, scope: SessionId | None = None, limit: int = 12
    ) -> list[MessageHit]:
        """See `Reader.search_messages`; the newest first."""
        words = query_words(query)
        hits = [
            _hit(row, record, words)
            for row in self._listed(scope)
            for record in self._tables.replica(row.id).messages()
            if words and holds(said(record), words)
        ]
        hits.sort(key=lambda hit: hit.updated_at, reverse=True)
        return hits[: clamp(limit, MAX_MESSAGE_HITS)]

    def sessions(
        self,
        limit: int = 100,
        before: tuple[float, SessionId] | None = None,
        *,
        agent: str | None = None,
        archived: bool | None = None,
        title: str = "",
    ) -> list[SessionRow]:
        """See `Reader.sessions`."""
        found = [
            row
            for row in self._listed()
            if (before is None or (row.updated_at, row.id) < before)
            and agent in (None, row.settings.agent_id)
            and archived in (None, row.archived_at is not None)
            and folded(title) in folded(row.settings.title)
        ]
        found.sort(key=lambda row: (row.updated_at, row.id), reverse=True)
        return found[: clamp(limit, MAX_ROWS)]

    def _listed(self, scope: SessionId | None = None) -> Iterator[SessionRow]:
        scopes = self._tables.sessions if scope is None else (scope,)
        return (row for row in map(self.session, scopes) if row is not None)

    def session(self, scope: SessionId) -> SessionRow | None:
        """See `Reader.session`."""
        info = self._tables.replica(scope).info
        if info is None or info.settings is None:
            return None
        return SessionRow(
            id=scope,
            settings=info.settings,
            created_at=info.created_at,
            updated_at=info.updated_at,
            head=self._tables.hot[scope].head,
            message_count=info.totals.messages,
            input_tokens=info.totals.input_tokens,
            output_tokens=info.totals.output_tokens,
            has_open_interaction=info.totals.open > 0,
            archived_at=info.archived_at,
        )

    def messages(
        self,
        scope: SessionId,
        before: int | None = None,
        limit: int = 100,
        role: Literal["user", "assistant"] | None = None,
    ) -> list[MessageRecord]:
        """See `Reader.messages`."""
        found = [
            m
            for m in self._tables.replica(scope).messages()
            if (before is None or m.order_seq < before) and role in (None, m.role)
        ]
        return found[-clamp(limit, MAX_ROWS) :]

    def broken_messages(self, scope: SessionId) -> list[MessageId]:
        """See `Reader.broken_messages`; there are no rows to miss."""
        return []

    def message(self, scope: SessionId, message_id: str) -> MessageRecord | None:
        """See `Reader.message`."""
        found = [
            m for m in self._tables.replica(scope).messages() if m.id == message_id
        ]
        return found[0] if found else None

    def pending_messages(self, scope: SessionId) -> list[MessageRecord]:
        """See `Reader.pending_messages`."""
        return [
            m for m in self._tables.replica(scope).messages() if m.status == "pending"
        ]

    def message_count(self, scope: SessionId) -> int:
        """See `Reader.message_count`."""
        info = self._tables.replica(scope).info
        return 0 if info is None else info.totals.messages

    def pending_inputs(self, scope: SessionId) -> PendingInputs:
        """See `Reader.pending_inputs`."""
        return PendingInputs.of(self._tables.replica(scope).inputs.values())

    def plan(self, scope: SessionId) -> Plan | None:
        """See `Reader.plan`."""
        info = self._tables.replica(scope).info
        return None if info is None else info.plan

    def run_session(self, run_id: RunId) -> SessionId | None:
        """See `Reader.run_session`."""
        return next(
            (s for s in self._tables.sessions if self._tables.entries_of(s, run_id)),
            None,
        )

    def owed_by_dead(self) -> list[SessionId]:
        """See `Reader.owed_by_dead`."""
        found = self._tables.hot.items()
        return sorted(scope for scope, hot in found if self._is_orphan(scope, hot))

    def _is_orphan(self, scope: SessionId, hot: Hot) -> bool:
        tables = self._tables
        if hot.owner is not None:
            return tables.is_gone(hot.owner)
        return tables.owes(scope) or bool(tables.replica(scope).open_runs)

    def open_runs(self, scope: SessionId) -> list[OpenRun]:
        """See `Reader.open_runs`."""
        return [
            OpenRun(scope, RunId(run_id), self._tables.entries_of(scope, run_id))
            for run_id in sorted(self._tables.replica(scope).open_runs)
        ]

    def run_entries(self, scope: SessionId, run_id: RunId) -> tuple[TapeEntry, ...]:
        """See `Reader.run_entries`."""
        known = scope in self._tables.sessions
        return self._tables.entries_of(scope, run_id) if known else ()

    def is_elsewhere(self, scope: SessionId, run_id: RunId) -> bool:
        """See `Reader.is_elsewhere`."""
        tables = self._tables
        others = (other for other in tables.sessions if other != scope)
        return any(tables.entries_of(other, run_id) for other in others)

    def cached_blocks(self, scope: SessionId, message_id: str) -> str | None:
        """See `Reader.cached_blocks`."""
        session = self._tables.sessions.get(scope)
        return None if session is None else session.cached.get(message_id)

    def traces(
        self, scope: SessionId, message_id: str | None = None, limit: int = 100
    ) -> list[AttemptTrace]:
        """See `Reader.traces`."""
        return kept_traces(self._tables.sessions.get(scope), message_id, limit)

    def count_traces(self, before: float) -> int:
        """See `Reader.count_traces`."""
        sessions = self._tables.sessions.values()
        return sum(len(old_traces(session, before)) for session in sessions)

    def request_trace(
        self, scope: SessionId, message_id: str, request_seq: int
    ) -> AttemptTrace | None:
        """See `Reader.request_trace`."""
        kept = kept_traces(self._tables.sessions.get(scope), message_id, MAX_TRACES)
        of_request = [trace for trace in kept if trace.request_seq == request_seq]
        return max(of_request, key=lambda trace: trace.physical_attempt, default=None)

    def last_request(self, scope: SessionId, message_id: str) -> int:
        """See `Reader.last_request`."""
        return last_request(self._tables.sessions.get(scope), message_id)

    def close(self) -> None:
        """See `Reader.close`; nothing is lost, the instance is the database."""

    #### Members and grants

    def join(self, node: str, addr: str, ttl: float, *, now: float) -> Member:
        """See `Store.join`."""
        check_member(node, addr, ttl)
        with self._writes.write():
            self._joined += 1
            member = Member(str(self._joined), node, addr, ttl)
            joined = Joined(member, now + ttl)
            self._tables.undo.put(self._tables.members, member.id, joined)
            return member

    def beat(self, member: Member, *, now: float) -> MemberLost | None:
        """See `Store.beat`."""
        with self._writes.write():
            known = self._tables.members.get(member.id)
            if known is None or known.dead:
                return MemberLost(member.id)
            renewed = attrs.evolve(known, expires=now + member.ttl)
            self._tables.undo.put(self._tables.members, member.id, renewed)
            return None

    def leave(self, member: Member, *, now: float) -> None:
        """See `Store.leave`."""
        with self._writes.write():
            for scope, hot in list(self._tables.hot.items()):
                if hot.owner == member.id:
                    self._tables.move(scope, None)
            self._tables.undo.drop(self._tables.members, member.id)

    def acquire(
        self, member: Member, scope: SessionId, *, now: float
    ) -> Grant | Held | MemberLost:
        """See `Store.acquire`."""
        check_session_id(scope)
        with self._writes.write():
            return self._tables.take(member, scope, now)

    def claim(self, member: Member, limit: int, *, now: float) -> list[Grant]:
        """See `Store.claim`."""
        with self._writes.write():
            free = [
                scope
                for scope, hot in sorted(self._tables.hot.items())
                if self._tables.owes(scope)
                and hot.owner != member.id
                and not (
                    hot.owner is not None and self._tables.is_alive(hot.owner, now)
                )
            ]
            taken = [
                self._tables.take(member, scope, now)
                for scope in free[: clamp(limit, MAX_ENTRIES)]
            ]
            return [grant for grant in taken if isinstance(grant, Grant)]

    def release(self, grant: Grant, *, now: float) -> None:
        """See `Store.release`."""
        with self._writes.write():
            if self._tables.is_current(grant):
                self._tables.move(grant.scope, None)

    #### Facts

    def append(
        self,
        grant: Grant,
        expected_head: int,
        facts: Sequence[Fact],
        settles: Sequence[str] = (),
        append_id: str | None = None,
        *,
        now: float,
    ) -> Appended | Fenced | HeadMoved:
        """See `Store.append`."""
        check_facts(facts, settles)
        if append_id is not None:
            check_text("append id", append_id, MAX_APPEND_ID)
        with self._writes.write():
            session = self._tables.session_of(grant.scope)
            if append_id is not None and append_id in session.results:
                return session.results[append_id]
            refused = self._tables.refuse(grant, expected_head)
            if refused is not None:
                return refused
            result = self._tables.append(grant, facts, now)
            self._tables.settle(session, settles)
            if append_id is not None:
                self._tables.remember(session, append_id, result)
            return result

    def commit(
        self, grant: Grant, expected_head: int, record: JournalRecord, *, now: float
    ) -> Receipt | Fenced | HeadMoved:
        """See `Store.commit`."""
        with self._writes.write(strict=True):
            refused = self._tables.refuse(grant, expected_head)
            if refused is not None:
                return refused
            fact = journal_fact(record)
            session = self._tables.session_of(grant.scope)
            check_bootstrapped(grant.scope, expected_head)
            if is_repeat(record, fact, session.find(fact.key)):
                return Receipt(session.keys[fact.key], expected_head, created=False)
            keys = needed_keys(record)
            found = {key: session.find(key) for key in keys}
            check_prerequisites(record, found.get)
            if isinstance(record, RunStarted):
                self._tables.check_run_is_new(grant.scope, record)
            self._tables.write_fact(grant, expected_head + 1, fact, now)
            self._tables.move_head(grant.scope, expected_head + 1)
            return Receipt(expected_head + 1, expected_head + 1, created=True)

    def reset(
        self, grant: Grant, expected_head: int, facts: Sequence[Fact], *, now: float
    ) -> Appended | Fenced | HeadMoved:
        """See `Store.reset`."""
        check_facts(facts, ())
        check_bootstrap(facts)
        with self._writes.write():
            refused = self._tables.refuse(grant, expected_head)
            if refused is not None:
                return refused
            self._tables.clear(grant.scope)
            self._skills.forget_session(grant.scope)
            return self._tables.append(grant, facts, now)

    def delete(self, grant: Grant, expected_head: int) -> Fenced | HeadMoved | None:
        """See `Store.delete`."""
        with self._writes.write():
            refused = self._tables.refuse(grant, expected_head)
            if refused is not None:
                return refused
            self._tables.clear(grant.scope)
            self._skills.forget_session(grant.scope)
            self._skills.put_selection(grant.scope, ())
            self._tables.move(grant.scope, None)
            return None

    def rebuild(self, scope: SessionId) -> None:
        """See `Store.rebuild`."""
        with self._writes.write():
            session = self._tables.session_of(scope)
            replica = Replica()
            for seq in sorted(session.entries):
                replica.apply(session.entries[seq], Undo())
            fresh = attrs.evolve(session, replica=replica)
            self._tables.undo.put(self._tables.sessions, scope, fresh)

    #### Inbox

    def post(
        self, scope: SessionId, command_id: str, body: str, *, now: float
    ) -> Posted | Seen:
        """See `Store.post`."""
        check_session_id(scope)
        check_command(command_id, body)
        with self._writes.write():
            session = self._tables.session_of(scope)
            known = session.commands.get(command_id)
            if known is not None:
                return Seen(same_body=known.body == body)
            waiting = sum(not c.settled for c in session.commands.values())
            if waiting >= MAX_OPEN_COMMANDS:
                raise full_inbox(scope, waiting)
            self._tables.undo.put(session.commands, command_id, Command(body, now))
            return Posted()

    def inbox(self, grant: Grant, limit: int = 100) -> list[InboxCommand] | Fenced:
        """See `Store.inbox`."""
        if not self._tables.is_current(grant):
            return Fenced(grant.scope, grant.token)
        found = [
            InboxCommand(command_id, command.body, command.posted_at)
            for command_id, command in self._tables.sessions[
                grant.scope
            ].commands.items()
            if not command.settled
        ]
        return found[: clamp(limit, MAX_OPEN_COMMANDS)]

    def owed(self, member: Member) -> list[SessionId]:
        """See `Store.owed`."""
        return sorted(
            scope
            for scope, hot in self._tables.hot.items()
            if hot.owner == member.id and self._tables.owes(scope)
        )

    #### Caches, index, log

    def cache_blocks(
        self, grant: Grant, message_id: str, blocks: str, *, now: float
    ) -> Fenced | None:
        """See `Store.cache_blocks`."""
        check_text("message id", message_id, MAX_IDENTITY)
        check_json("blocks", blocks)
        with self._writes.write():
            if not self._tables.is_current(grant):
                return Fenced(grant.scope, grant.token)
            session = self._tables.sessions[grant.scope]
            if not session.replica.is_finished(message_id):
                self._tables.undo.put(session.cached, message_id, blocks)
            return None

    def keep_trace(self, grant: Grant, trace: AttemptTrace) -> Fenced | None:
        """See `Store.keep_trace`."""
        check_trace(trace)
        with self._writes.write():
            if not self._tables.is_current(grant):
                return Fenced(grant.scope, grant.token)
            session = self._tables.session_of(grant.scope)
            put_trace(session, trace, self._tables.undo)
            return None

    def forget_traces(self, before: float) -> int:
        """See `Store.forget_traces`."""
        with self._writes.write():
            count = self.count_traces(before)
            for session in self._tables.sessions.values():
                for number in old_traces(session, before):
                    self._tables.undo.drop(session.traces, number)
            return count

    def index_pending(self, limit: int = 500) -> int:
        """See `Store.index_pending`; a search here reads the tapes themselves."""
        return 0

    def checkpoint(self) -> None:
        """See `Store.checkpoint`; there is no log."""

    def log_bytes(self) -> int:
        """See `Store.log_bytes`; there is no log."""
        return 0

    #### Agents and settings of the application

    def agents(self) -> list[AgentRow]:
        """See `Reader.agents`."""
        return self._agents.all()

    def agent(self, agent_id: str) -> AgentRow | None:
        """See `Reader.agent`."""
        return self._agents.rows.get(agent_id)

    def app_setting(self, key: str) -> str | None:
        """See `Reader.app_setting`."""
        return self._agents.settings.get(key)

    def put_agent(self, row: AgentRow) -> None:
        """See `Store.put_agent`."""
        check_agent(row)
        with self._writes.write():
            self._agents.put(row)

    def drop_agent(self, agent_id: str) -> bool:
        """See `Store.drop_agent`."""
        with self._writes.write():
            return self._agents.drop(agent_id)

    def put_app_setting(self, key: str, value: str | None, *, now: float) -> None:
        """See `Store.put_app_setting`."""
        check_app_setting(key, value)
        with self._writes.write():
            self._agents.put_setting(key, value)

    #### Skills and memories

    def skill_selection(self, scope: SessionId) -> tuple[str, ...]:
        """See `SkillReader.skill_selection`."""
        return self._skills.selections.get(scope, ())

    def skill_selections(self) -> list[tuple[SessionId, tuple[str, ...]]]:
        """See `SkillReader.skill_selections`."""
        return sorted(self._skills.selections.items())

    def recollections(
        self, agent_id: str, limit: int = 100, before: int | None = None
    ) -> list[Recollection]:
        """See `SkillReader.recollections`."""
        return self._skills.page(agent_id, limit, before)

    def recall(self, agent_id: str, query: str, limit: int = 8) -> list[Recollection]:
        """See `SkillReader.recall`."""
        return self._skills.recall(agent_id, query, limit)

    def ingest_mark(self, agent_id: str, scope: SessionId) -> IngestMark:
        """See `SkillReader.ingest_mark`."""
        return self._skills.mark(agent_id, scope)

    def put_skill_selection(self, scope: SessionId, names: Sequence[str]) -> None:
        """See `SkillWriter.put_skill_selection`."""
        kept = check_selection(scope, names)
        with self._writes.write():
            self._skills.put_selection(scope, kept)

    def keep_recollections(
        self,
        agent_id: str,
        scope: SessionId,
        mark: IngestMark,
        cursor: int,
        chunks: Sequence[Chunk],
        *,
        now: float,
    ) -> bool:
        """See `SkillWriter.keep_recollections`."""
        check_recollections(agent_id, scope, mark, cursor, chunks, now)
        with self._writes.write():
            return self._skills.keep(agent_id, scope, mark, cursor, chunks, now)

    def forget_recollections(
        self, agent_id: str, recollection_id: int | None = None
    ) -> int:
        """See `SkillWriter.forget_recollections`."""
        with self._writes.write():
            return self._skills.forget(agent_id, recollection_id)

    #### Groups

    def run_group(self, pieces: Sequence[Piece]) -> list[Settled]:
        """See `Store.run_group`."""
        return self._writes.run_group(self, pieces)


def _hit(row: SessionRow, record: MessageRecord, words: list[str]) -> MessageHit:
    return MessageHit(
        session_id=row.id,
        message_id=record.id,
        order_seq=record.order_seq,
        role=record.role,
        title=row.settings.title,
        snippet=snippet_of(said(record), words),
        updated_at=record.updated_at,
    )
