"""The store in plain Python: the same contract, no disk.

For tests, evaluations and engines that keep nothing. One instance is one database;
several members may share it. Whether a member's process lives is for the owner of
the instance to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import attrs

from greenroom.protocol import (
    AgentRow,
    AttemptTrace,
    Chunk,
    Fact,
    IngestMark,
    JournalRecord,
    Recollection,
    RunStarted,
    SessionId,
    journal_fact,
)

from .._admission import (
    MAX_APPEND_ID,
    MAX_IDENTITY,
    check_binding,
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
from .._bindings import Binding
from .._errors import full_inbox
from .._journal_rules import (
    check_bootstrapped,
    check_prerequisites,
    is_repeat,
    needed_keys,
)
from .._limits import (
    FORGOTTEN,
    MAX_ENTRIES,
    clamp,
)
from .._skill_rules import check_recollections, check_selection, taken_back
from .._store import Piece, Settled
from .._values import (
    MAX_OPEN_COMMANDS,
    Appended,
    Fenced,
    Grant,
    HeadMoved,
    Held,
    InboxCommand,
    Member,
    MemberLost,
    Posted,
    Receipt,
    Seen,
)
from . import _reads
from ._agents import AgentTables
from ._bindings import BindingTable
from ._groups import Writes
from ._replica import Replica
from ._skills import SkillTables
from ._tables import Command, Joined, Tables
from ._traces import old_traces, put_trace
from ._undo import Undo


def _every_process_lives(member_id: str) -> bool:
    return True


@final
@attrs.define(eq=False, repr=False)
class MemoryStore:
    """See `Store`."""

    tables: Tables
    _writes: Writes
    _agents: AgentTables
    _skills: SkillTables
    _bindings: BindingTable
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
            BindingTable(tables.undo),
        )

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self.tables.sessions)} sessions>"

    #### Reads

    page = _reads.page
    scopes = _reads.scopes
    heads = _reads.heads
    locate = _reads.locate
    search = _reads.search
    search_tape = _reads.search_tape
    named = _reads.named
    view_entry = _reads.view_entry
    search_messages = _reads.search_messages
    sessions = _reads.sessions
    session = _reads.session
    messages = _reads.messages
    broken_messages = _reads.broken_messages
    message = _reads.message
    pending_messages = _reads.pending_messages
    retracted_messages = _reads.retracted_messages
    message_count = _reads.message_count
    pending_inputs = _reads.pending_inputs
    plan = _reads.plan
    run_session = _reads.run_session
    owed_by_dead = _reads.owed_by_dead
    open_runs = _reads.open_runs
    run_entries = _reads.run_entries
    is_elsewhere = _reads.is_elsewhere
    cached_blocks = _reads.cached_blocks
    traces = _reads.traces
    count_traces = _reads.count_traces
    request_trace = _reads.request_trace
    last_request = _reads.last_request
    request_entries = _reads.request_entries

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
            self.tables.undo.put(self.tables.members, member.id, joined)
            return member

    def beat(self, member: Member, *, now: float) -> MemberLost | None:
        """See `Store.beat`."""
        with self._writes.write():
            known = self.tables.members.get(member.id)
            if known is None or known.dead:
                return MemberLost(member.id)
            renewed = attrs.evolve(known, expires=now + member.ttl)
            self.tables.undo.put(self.tables.members, member.id, renewed)
            return None

    def leave(self, member: Member, *, now: float) -> None:
        """See `Store.leave`."""
        with self._writes.write():
            for scope, hot in list(self.tables.hot.items()):
                if hot.owner == member.id:
                    self.tables.move(scope, None)
            self._bindings.drop(lambda row: row.member_id == member.id)
            self.tables.undo.drop(self.tables.members, member.id)

    def acquire(
        self, member: Member, scope: SessionId, *, now: float
    ) -> Grant | Held | MemberLost:
        """See `Store.acquire`."""
        check_session_id(scope)
        with self._writes.write():
            return self.tables.take(member, scope, now)

    def claim(self, member: Member, limit: int, *, now: float) -> list[Grant]:
        """See `Store.claim`."""
        with self._writes.write():
            free = [
                scope
                for scope, hot in sorted(self.tables.hot.items())
                if self.tables.owes(scope)
                and hot.owner != member.id
                and not (hot.owner is not None and self.tables.is_alive(hot.owner, now))
            ]
            taken = [
                self.tables.take(member, scope, now)
                for scope in free[: clamp(limit, MAX_ENTRIES)]
            ]
            return [grant for grant in taken if isinstance(grant, Grant)]

    def release(self, grant: Grant, *, now: float) -> None:
        """See `Store.release`."""
        with self._writes.write():
            if self.tables.is_current(grant):
                self.tables.move(grant.scope, None)

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
            session = self.tables.session_of(grant.scope)
            if append_id is not None and append_id in session.results:
                return session.results[append_id]
            refused = self.tables.refuse(grant, expected_head)
            if refused is not None:
                return refused
            result = self.tables.append(grant, facts, now)
            gone = taken_back(facts, result)
            self._skills.forget_places(grant.scope, session.replica.places(gone))
            self.tables.settle(session, settles)
            if append_id is not None:
                self.tables.remember(session, append_id, result)
            return result

    def commit(
        self, grant: Grant, expected_head: int, record: JournalRecord, *, now: float
    ) -> Receipt | Fenced | HeadMoved:
        """See `Store.commit`."""
        with self._writes.write(strict=True):
            refused = self.tables.refuse(grant, expected_head)
            if refused is not None:
                return refused
            fact = journal_fact(record)
            session = self.tables.session_of(grant.scope)
            check_bootstrapped(grant.scope, expected_head)
            if is_repeat(record, fact, session.find(fact.key)):
                return Receipt(session.keys[fact.key], expected_head, created=False)
            keys = needed_keys(record)
            found = {key: session.find(key) for key in keys}
            check_prerequisites(record, found.get)
            if isinstance(record, RunStarted):
                self.tables.check_run_is_new(grant.scope, record)
            self.tables.write_fact(grant, expected_head + 1, fact, now)
            self.tables.move_head(grant.scope, expected_head + 1)
            return Receipt(expected_head + 1, expected_head + 1, created=True)

    def reset(
        self, grant: Grant, expected_head: int, facts: Sequence[Fact], *, now: float
    ) -> Appended | Fenced | HeadMoved:
        """See `Store.reset`."""
        check_facts(facts, ())
        check_bootstrap(facts)
        with self._writes.write():
            refused = self.tables.refuse(grant, expected_head)
            if refused is not None:
                return refused
            self.tables.restart(grant.scope)
            self._skills.forget_session(grant.scope)
            return self.tables.append(grant, facts, now)

    def delete(self, grant: Grant, expected_head: int) -> Fenced | HeadMoved | None:
        """See `Store.delete`."""
        with self._writes.write():
            refused = self.tables.refuse(grant, expected_head)
            if refused is not None:
                return refused
            self.tables.clear(grant.scope)
            self._skills.forget_session(grant.scope)
            self._skills.put_selection(grant.scope, ())
            self._bindings.drop(lambda row: row.session_id == grant.scope)
            self.tables.move(grant.scope, None)
            return None

    def rebuild(self, scope: SessionId) -> None:
        """See `Store.rebuild`."""
        with self._writes.write():
            session = self.tables.session_of(scope)
            replica = Replica()
            for seq in sorted(session.entries):
                replica.apply(session.entries[seq], Undo())
            fresh = attrs.evolve(session, replica=replica)
            self.tables.undo.put(self.tables.sessions, scope, fresh)

    #### Inbox

    def post(
        self, scope: SessionId, command_id: str, body: str, *, now: float
    ) -> Posted | Seen:
        """See `Store.post`."""
        check_session_id(scope)
        check_command(command_id, body)
        with self._writes.write():
            session = self.tables.session_of(scope)
            known = session.commands.get(command_id)
            if known is not None:
                return Seen(same_body=known.body in (body, FORGOTTEN))
            waiting = sum(not c.settled for c in session.commands.values())
            if waiting >= MAX_OPEN_COMMANDS:
                raise full_inbox(scope, waiting)
            self.tables.undo.put(session.commands, command_id, Command(body, now))
            return Posted()

    def inbox(self, grant: Grant, limit: int = 100) -> list[InboxCommand] | Fenced:
        """See `Store.inbox`."""
        if not self.tables.is_current(grant):
            return Fenced(grant.scope, grant.token)
        found = [
            InboxCommand(command_id, command.body, command.posted_at)
            for command_id, command in self.tables.sessions[
                grant.scope
            ].commands.items()
            if not command.settled
        ]
        return found[: clamp(limit, MAX_OPEN_COMMANDS)]

    def owed(self, member: Member) -> list[SessionId]:
        """See `Store.owed`."""
        return sorted(
            scope
            for scope, hot in self.tables.hot.items()
            if hot.owner == member.id and self.tables.owes(scope)
        )

    #### Caches, index, log

    def cache_blocks(
        self, grant: Grant, message_id: str, blocks: str, *, now: float
    ) -> Fenced | None:
        """See `Store.cache_blocks`."""
        check_text("message id", message_id, MAX_IDENTITY)
        check_json("blocks", blocks)
        with self._writes.write():
            if not self.tables.is_current(grant):
                return Fenced(grant.scope, grant.token)
            session = self.tables.sessions[grant.scope]
            if not session.replica.is_finished(message_id):
                self.tables.undo.put(session.cached, message_id, blocks)
            return None

    def keep_trace(self, grant: Grant, trace: AttemptTrace) -> Fenced | None:
        """See `Store.keep_trace`."""
        check_trace(trace)
        with self._writes.write():
            if not self.tables.is_current(grant):
                return Fenced(grant.scope, grant.token)
            session = self.tables.session_of(grant.scope)
            put_trace(session, trace, self.tables.undo)
            return None

    def forget_traces(self, before: float) -> int:
        """See `Store.forget_traces`."""
        with self._writes.write():
            count = self.count_traces(before)
            for session in self.tables.sessions.values():
                for number in old_traces(session, before):
                    self.tables.undo.drop(session.traces, number)
            return count

    def index_pending(self, limit: int = 500) -> int:
        """See `Store.index_pending`; a search here reads the tapes themselves."""
        return 0

    def checkpoint(self) -> bool:
        """See `Store.checkpoint`; there is no log."""
        return True

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

    #### Bindings

    def bindings(
        self, *, client: str | None = None, session: str | None = None
    ) -> list[Binding]:
        """See `BindingReader.bindings`."""
        return self._bindings.find(client, session)

    def bind(
        self, member: Member, client_id: str, scope: SessionId, *, now: float
    ) -> None:
        """See `BindingWriter.bind`."""
        check_binding(client_id, scope)
        with self._writes.write():
            self._bindings.put(Binding(client_id, scope, member.id, now))

    def unbind(
        self, member: Member, client_id: str, scopes: Sequence[SessionId]
    ) -> None:
        """See `BindingWriter.unbind`."""
        with self._writes.write():
            self._bindings.drop(
                lambda row: (
                    row.client_id == client_id
                    and row.member_id == member.id
                    and row.session_id in scopes
                )
            )

    def drop_stale_bindings(self) -> int:
        """See `BindingWriter.drop_stale_bindings`."""
        with self._writes.write():
            return self._bindings.drop(
                lambda row: (
                    row.member_id not in self.tables.members
                    or self.tables.is_gone(row.member_id)
                )
            )

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
