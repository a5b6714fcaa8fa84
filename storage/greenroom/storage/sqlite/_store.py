"""The store on SQLite: one writer, its transactions, groups and pieces.

Every public method is one transaction, or one savepoint inside a group. A group
holds the write lock once and syncs once; each of its pieces has a savepoint, and a
strict fact has a piece to itself (JRN-05). Not for several threads at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final

import apsw
import attrs

from greenroom.protocol import (
    AgentRow,
    AttemptTrace,
    Chunk,
    Fact,
    IngestMark,
    JournalError,
    JournalRecord,
    SessionId,
    StorageError,
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
from .._limits import clamp
from .._skill_rules import check_recollections, check_selection, taken_back
from .._store import Piece, Settled
from .._values import (
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
from . import (
    _agents,
    _append,
    _bindings,
    _inbox,
    _members,
    _reads,
    _search,
    _skills,
    _traces,
    _transcript,
)
from ._care import log_bytes
from ._connection import impatient, mapped_errors, one, run
from ._folder import FolderLock, Proofs
from ._groups import Writes, persistence_failed


@final
@attrs.define(eq=False, repr=False)
class SqliteReader:
    """A connection that only reads; no membership."""

    connection: apsw.Connection
    proofs: Proofs

    page = _reads.page
    scopes = _reads.scopes
    heads = _reads.heads
    locate = _reads.locate
    search = _search.search
    search_tape = _search.search_tape
    named = _reads.named
    view_entry = _reads.view_entry
    search_messages = _search.search_messages
    sessions = _reads.sessions
    session = _reads.session
    messages = _transcript.messages
    message = _transcript.message
    pending_messages = _transcript.pending_messages
    retracted_messages = _transcript.retracted_messages
    message_count = _transcript.message_count
    broken_messages = _transcript.broken_messages
    plan = _reads.plan
    pending_inputs = _reads.pending_inputs
    run_session = _reads.run_session
    owed_by_dead = _reads.owed_by_dead
    open_runs = _reads.open_runs
    run_entries = _reads.run_entries
    is_elsewhere = _reads.is_elsewhere
    cached_blocks = _transcript.cached_blocks
    traces = _traces.traces
    count_traces = _traces.count_traces
    request_trace = _traces.request_trace
    last_request = _traces.last_request
    request_entries = _traces.request_entries

    agents = _agents.agents
    agent = _agents.agent
    app_setting = _agents.app_setting

    bindings = _bindings.bindings
    skill_selection = _skills.skill_selection
    skill_selections = _skills.skill_selections
    recollections = _skills.recollections
    recall = _skills.recall
    ingest_mark = _skills.ingest_mark

    def __repr__(self) -> str:
        return f"<SqliteReader {self.connection.filename!r}>"

    def log_bytes(self) -> int:
        """See `Reader.log_bytes`."""
        return log_bytes(self.connection)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


@final
@attrs.define(eq=False, repr=False)
class SqliteStore:
    """The writer; see `Store`."""

    connection: apsw.Connection
    proofs: Proofs
    folder: Path
    _lock: FolderLock
    _writes: Writes

    page = _reads.page
    scopes = _reads.scopes
    heads = _reads.heads
    locate = _reads.locate
    search = _search.search
    search_tape = _search.search_tape
    named = _reads.named
    view_entry = _reads.view_entry
    search_messages = _search.search_messages
    sessions = _reads.sessions
    session = _reads.session
    messages = _transcript.messages
    message = _transcript.message
    pending_messages = _transcript.pending_messages
    retracted_messages = _transcript.retracted_messages
    message_count = _transcript.message_count
    broken_messages = _transcript.broken_messages
    plan = _reads.plan
    pending_inputs = _reads.pending_inputs
    run_session = _reads.run_session
    owed_by_dead = _reads.owed_by_dead
    open_runs = _reads.open_runs
    run_entries = _reads.run_entries
    is_elsewhere = _reads.is_elsewhere
    cached_blocks = _transcript.cached_blocks
    traces = _traces.traces
    count_traces = _traces.count_traces
    request_trace = _traces.request_trace
    last_request = _traces.last_request
    request_entries = _traces.request_entries

    agents = _agents.agents
    agent = _agents.agent
    app_setting = _agents.app_setting

    bindings = _bindings.bindings
    skill_selection = _skills.skill_selection
    skill_selections = _skills.skill_selections
    recollections = _skills.recollections
    recall = _skills.recall
    ingest_mark = _skills.ingest_mark

    def __repr__(self) -> str:
        return f"<SqliteStore {str(self.folder)!r}>"

    def close(self) -> None:
        """Close the connection; members that did not leave are dead from here on."""
        self.proofs.close()
        self.connection.close()
        self._lock.close()

    #### Members and grants

    def others(self, member: Member) -> list[str]:
        """Return the nodes of the other members that are alive, for display."""
        return _members.living_nodes(self.connection, self.proofs, but=member)

    def restore(self, member: Member, *, now: float) -> None:
        """Make a member alive again that another store of this folder was joined as.

        That one is closed; what the member owned may have been taken meanwhile.
        """
        with self._writes.write():
            _members.restore_member(self.connection, self.proofs, member, now)

    def join(self, node: str, addr: str, ttl: float, *, now: float) -> Member:
        """See `Store.join`."""
        check_member(node, addr, ttl)
        with self._writes.write() as group:
            member = _members.add_member(
                self.connection, self.proofs, node, addr, ttl, now
            )
            group.joined.append(int(member.id))
        return member

    def beat(self, member: Member, *, now: float) -> MemberLost | None:
        """See `Store.beat`."""
        with self._writes.write():
            return _members.renew(self.connection, member, now)

    def leave(self, member: Member, *, now: float) -> None:
        """See `Store.leave`."""
        with self._writes.write():
            _bindings.unbind_all(self.connection, member=int(member.id))
            _members.remove_member(self.connection, self.proofs, member)

    def acquire(
        self, member: Member, scope: SessionId, *, now: float
    ) -> Grant | Held | MemberLost:
        """See `Store.acquire`."""
        check_session_id(scope)
        with self._writes.write():
            return _members.take(self.connection, self.proofs, member, scope, now)

    def claim(self, member: Member, limit: int, *, now: float) -> list[Grant]:
        """See `Store.claim`."""
        with self._writes.write():
            return _members.claim_owed(
                self.connection, self.proofs, member, clamp(limit, 1_000), now
            )

    def release(self, grant: Grant, *, now: float) -> None:
        """See `Store.release`."""
        with self._writes.write():
            _members.give_back(self.connection, grant)

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
        db = self.connection
        with self._writes.write():
            if append_id is not None:
                earlier = _append.remembered(db, grant.scope, append_id)
                if earlier is not None:
                    return earlier
            session = _append.authorise(db, grant, expected_head)
            if not isinstance(session, _append.Hot):
                return session
            result = _append.append_facts(db, grant, session, facts, now)
            gone = taken_back(facts, result)
            _skills.forget_places(db, grant.scope, session.id, gone)
            _append.settle(db, session.id, settles)
            if append_id is not None:
                _append.remember(db, session.id, append_id, result)
            return result

    def commit(
        self, grant: Grant, expected_head: int, record: JournalRecord, *, now: float
    ) -> Receipt | Fenced | HeadMoved:
        """See `Store.commit`."""
        try:
            with self._writes.write(strict=True):
                session = _append.authorise(self.connection, grant, expected_head)
                if not isinstance(session, _append.Hot):
                    return session
                return _append.commit_record(
                    self.connection, grant, session, record, now
                )
        except JournalError:
            raise
        except StorageError as exc:
            raise persistence_failed(exc) from exc

    def reset(
        self, grant: Grant, expected_head: int, facts: Sequence[Fact], *, now: float
    ) -> Appended | Fenced | HeadMoved:
        """See `Store.reset`."""
        check_facts(facts, ())
        check_bootstrap(facts)
        with self._writes.write():
            session = _append.authorise(self.connection, grant, expected_head)
            if not isinstance(session, _append.Hot):
                return session
            _append.clear(self.connection, session.id)
            _inbox.empty(self.connection, session.id)
            _skills.forget_session(self.connection, grant.scope)
            empty = attrs.evolve(session, head=0)
            return _append.append_facts(self.connection, grant, empty, facts, now)

    def delete(self, grant: Grant, expected_head: int) -> Fenced | HeadMoved | None:
        """See `Store.delete`."""
        with self._writes.write():
            session = _append.authorise(self.connection, grant, expected_head)
            if not isinstance(session, _append.Hot):
                return session
            _append.clear(self.connection, session.id)
            _inbox.forget(self.connection, session.id)
            _skills.forget_session(self.connection, grant.scope)
            _skills.put_skill_selection(self.connection, grant.scope, ())
            _bindings.unbind_all(self.connection, scope=grant.scope)
            _members.give_back(self.connection, grant)
            return None

    def rebuild(self, scope: SessionId) -> None:
        """See `Store.rebuild`."""
        with self._writes.write():
            session = _append.find_session(self.connection, scope)
            if session is not None:
                _append.rebuild(self.connection, scope, session.id)

    #### Inbox

    def post(
        self, scope: SessionId, command_id: str, body: str, *, now: float
    ) -> Posted | Seen:
        """See `Store.post`."""
        check_session_id(scope)
        check_command(command_id, body)
        with self._writes.write():
            return _inbox.post(self.connection, scope, command_id, body, now)

    def inbox(self, grant: Grant, limit: int = 100) -> list[InboxCommand] | Fenced:
        """See `Store.inbox`."""
        return _inbox.waiting(self.connection, grant, limit)

    def owed(self, member: Member) -> list[SessionId]:
        """See `Store.owed`."""
        return _inbox.owed(self.connection, member)

    #### Caches, index, log

    def cache_blocks(
        self, grant: Grant, message_id: str, blocks: str, *, now: float
    ) -> Fenced | None:
        """See `Store.cache_blocks`."""
        check_text("message id", message_id, MAX_IDENTITY)
        check_json("blocks", blocks)
        db = self.connection
        with self._writes.write():
            session = _append.find_session(db, grant.scope)
            if session is None or session.token != grant.token:
                return Fenced(grant.scope, grant.token)
            run(
                db,
                "INSERT INTO cached_blocks SELECT ?1, ?2, ?3, ?4 WHERE NOT EXISTS"
                " (SELECT 1 FROM message WHERE session = ?1 AND name = ?2"
                " AND (status <> 'pending' OR retracted = 1))"
                " ON CONFLICT (session, message) DO UPDATE"
                " SET blocks = excluded.blocks, at = excluded.at",
                session.id,
                message_id,
                blocks,
                now,
            )
            return None

    def keep_trace(self, grant: Grant, trace: AttemptTrace) -> Fenced | None:
        """See `Store.keep_trace`."""
        check_trace(trace)
        with self._writes.write():
            session = _append.find_session(self.connection, grant.scope)
            if session is None or session.token != grant.token:
                return Fenced(grant.scope, grant.token)
            _traces.insert_trace(self.connection, session.id, trace)
            return None

    def forget_traces(self, before: float) -> int:
        """See `Store.forget_traces`."""
        with self._writes.write():
            return _traces.forget_traces(self.connection, before)

    def index_pending(self, limit: int = 500) -> int:
        """See `Store.index_pending`."""
        with self._writes.write():
            return _search.index_batch(self.connection, limit)

    def checkpoint(self) -> bool:
        """See `Store.checkpoint`."""
        with mapped_errors(), impatient(self.connection):
            row = one(self.connection, "PRAGMA wal_checkpoint(TRUNCATE)")
        # Whether somebody was in the way is the first column, and no error.
        return row is not None and row[0] == 0

    def log_bytes(self) -> int:
        """See `Reader.log_bytes`."""
        return log_bytes(self.connection)

    #### Agents and settings of the application

    def put_agent(self, row: AgentRow) -> None:
        """See `Store.put_agent`."""
        check_agent(row)
        with self._writes.write():
            _agents.put_agent(self.connection, row)

    def drop_agent(self, agent_id: str) -> bool:
        """See `Store.drop_agent`."""
        with self._writes.write():
            return _agents.drop_agent(self.connection, agent_id)

    def put_app_setting(self, key: str, value: str | None, *, now: float) -> None:
        """See `Store.put_app_setting`."""
        check_app_setting(key, value)
        with self._writes.write():
            _agents.put_app_setting(self.connection, key, value, now)

    #### Bindings

    def bind(
        self, member: Member, client_id: str, scope: SessionId, *, now: float
    ) -> None:
        """See `BindingWriter.bind`."""
        check_binding(client_id, scope)
        with self._writes.write():
            _bindings.bind(self.connection, member, client_id, scope, now)

    def unbind(
        self, member: Member, client_id: str, scopes: Sequence[SessionId]
    ) -> None:
        """See `BindingWriter.unbind`."""
        with self._writes.write():
            _bindings.unbind(self.connection, member, client_id, scopes)

    def drop_stale_bindings(self) -> int:
        """See `BindingWriter.drop_stale_bindings`."""
        with self._writes.write():
            return _bindings.drop_stale(self.connection, self.proofs)

    #### Skills and memories

    def put_skill_selection(self, scope: SessionId, names: Sequence[str]) -> None:
        """See `SkillWriter.put_skill_selection`."""
        kept = check_selection(scope, names)
        with self._writes.write():
            _skills.put_skill_selection(self.connection, scope, kept)

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
            return _skills.keep_recollections(
                self.connection, agent_id, scope, mark, cursor, chunks, now
            )

    def forget_recollections(
        self, agent_id: str, recollection_id: int | None = None
    ) -> int:
        """See `SkillWriter.forget_recollections`."""
        with self._writes.write():
            return _skills.forget_recollections(
                self.connection, agent_id, recollection_id
            )

    #### Groups

    def run_group(self, pieces: Sequence[Piece]) -> list[Settled]:
        """See `Store.run_group`."""
        return self._writes.run_group(self, pieces)
