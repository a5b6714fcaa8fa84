"""What the store in memory keeps, and what is asked and done inside a write.

Every change goes through the undo log. Nothing here decides when a write begins or
ends; that is `MemoryStore`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import final

import attrs

from greenroom.protocol import AttemptTrace, Fact, RunStarted, SessionId, TapeEntry

from .._admission import check_start
from .._errors import conflicting_fact, unknown_command
from .._journal_rules import refuse_elsewhere
from .._limits import FORGOTTEN, REMEMBERED
from .._values import (
    Appended,
    Fenced,
    Grant,
    HeadMoved,
    Held,
    Member,
    MemberLost,
    Owner,
)
from .._words import searchable_text
from ..names import MESSAGE_RECORDED, is_strict
from ._replica import Replica
from ._undo import Undo


@attrs.frozen
class Joined:
    """A member."""

    member: Member
    expires: float
    dead: bool = False


@attrs.frozen
class Hot:
    """What every write reads of a session."""

    head: int = 0
    token: int = 0
    owner: str | None = None


@attrs.frozen
class Command:
    """A command, settled or not."""

    body: str
    posted_at: float
    settled: bool = False


@attrs.define(eq=False)
class Session:
    """What one session has beside its hot value."""

    entries: dict[int, TapeEntry] = attrs.field(factory=dict[int, TapeEntry])
    keys: dict[str, int] = attrs.field(factory=dict[str, int])
    commands: dict[str, Command] = attrs.field(factory=dict[str, Command])
    results: dict[str, Appended] = attrs.field(factory=dict[str, Appended])
    cached: dict[str, str] = attrs.field(factory=dict[str, str])
    traces: dict[int, AttemptTrace] = attrs.field(factory=dict[int, AttemptTrace])
    """By a number that grows."""
    replica: Replica = attrs.field(factory=Replica)

    def searchable(self) -> Iterator[tuple[TapeEntry, str]]:
        """Yield what can be found, and by which text."""
        of_messages = self.replica.said()
        for seq, entry in self.entries.items():
            yield entry, of_messages.get(seq) or searchable_text(entry.fact)

    def find(self, key: str) -> str | None:
        """Return the payload under a provenance key."""
        seq = self.keys.get(key)
        return None if seq is None else self.entries[seq].fact.payload


@final
@attrs.define(eq=False)
class Tables:
    """One database."""

    lives: Callable[[str], bool]
    """Whether the process of a member lives."""
    members: dict[str, Joined] = attrs.field(factory=dict[str, Joined])
    hot: dict[SessionId, Hot] = attrs.field(factory=dict[SessionId, Hot])
    sessions: dict[SessionId, Session] = attrs.field(factory=dict[SessionId, Session])
    undo: Undo = attrs.field(factory=Undo)

    #### Inside a write

    def append(self, grant: Grant, facts: Sequence[Fact], now: float) -> Appended:
        """Write *facts* after the head; what exists already is not written again."""
        head = self.hot[grant.scope].head
        session = self.sessions[grant.scope]
        check_start(head, facts)
        seqs: list[int] = []
        created: list[bool] = []
        for fact in facts:
            known = session.keys.get(fact.key)
            if known is None:
                head += 1
                self.write_fact(grant, head, fact, now)
            elif is_strict(fact.name) and session.find(fact.key) != fact.payload:
                raise conflicting_fact(fact)
            seqs.append(head if known is None else known)
            created.append(known is None)
        self.move_head(grant.scope, head)
        return Appended(head, tuple(seqs), tuple(created))

    def write_fact(self, grant: Grant, seq: int, fact: Fact, now: float) -> None:
        """Write one fact at *seq*, and what is derived from it."""
        session = self.sessions[grant.scope]
        entry = TapeEntry(
            session_id=grant.scope,
            seq=seq,
            token=grant.token,
            fact=fact,
            created_at=now,
        )
        self.undo.put(session.entries, seq, entry)
        self.undo.put(session.keys, fact.key, seq)
        session.replica.apply(entry, self.undo)
        if fact.name == MESSAGE_RECORDED:
            self.undo.drop(session.cached, fact.source_id)

    def settle(self, session: Session, command_ids: Sequence[str]) -> None:
        """Mark commands as finished."""
        for command_id in command_ids:
            command = session.commands.get(command_id)
            if command is None:
                raise unknown_command(command_id)
            done = attrs.evolve(command, settled=True)
            self.undo.put(session.commands, command_id, done)

    def remember(self, session: Session, append_id: str, result: Appended) -> None:
        """Keep *result* for whoever asks with the same *append_id* again."""
        self.undo.put(session.results, append_id, result)
        for old in list(session.results)[:-REMEMBERED]:
            self.undo.drop(session.results, old)

    def check_run_is_new(self, scope: SessionId, record: RunStarted) -> None:
        """Refuse a run that another session has facts of."""
        for other in self.sessions:
            if other != scope and self.entries_of(other, record.run_id):
                raise refuse_elsewhere(record)

    def clear(self, scope: SessionId) -> None:
        """Remove everything of *scope* but its hot value, whose head becomes 0."""
        self.undo.put(self.sessions, scope, Session())
        self.move_head(scope, 0)

    def restart(self, scope: SessionId) -> None:
        """The same, but that the ids of its commands stay taken."""
        emptied = {
            command_id: Command(FORGOTTEN, command.posted_at, settled=True)
            for command_id, command in self.sessions[scope].commands.items()
        }
        self.undo.put(self.sessions, scope, Session(commands=emptied))
        self.move_head(scope, 0)

    def session_of(self, scope: SessionId) -> Session:
        """Return the session *scope*, made if it is not there."""
        if scope not in self.hot:
            self.undo.put(self.hot, scope, Hot())
            self.undo.put(self.sessions, scope, Session())
        return self.sessions[scope]

    def refuse(self, grant: Grant, expected_head: int) -> Fenced | HeadMoved | None:
        """Return why *grant* may not write now; token first, then head."""
        if not self.is_current(grant):
            return Fenced(grant.scope, grant.token)
        head = self.hot[grant.scope].head
        return None if head == expected_head else HeadMoved(grant.scope, head)

    def take(
        self, member: Member, scope: SessionId, now: float
    ) -> Grant | Held | MemberLost:
        """Give *scope* to *member*, unless another living member owns it."""
        me = self.members.get(member.id)
        if me is None or me.dead:
            return MemberLost(member.id)
        self.session_of(scope)
        owner = self.hot[scope].owner
        if owner is not None and owner != member.id:
            known = self.members[owner]
            if self.is_alive(owner, now):
                return Held(scope, self.owner(owner))
            self.undo.put(self.members, owner, attrs.evolve(known, dead=True))
        self.move(scope, member.id)
        hot = self.hot[scope]
        return Grant(scope, hot.token, hot.head, member.id)

    def move(self, scope: SessionId, owner: str | None) -> None:
        """Change the owner of *scope*, and its token."""
        hot = self.hot[scope]
        moved = attrs.evolve(hot, owner=owner, token=hot.token + 1)
        self.undo.put(self.hot, scope, moved)

    def move_head(self, scope: SessionId, head: int) -> None:
        """Set the head of *scope*."""
        moved = attrs.evolve(self.hot[scope], head=head)
        self.undo.put(self.hot, scope, moved)

    #### Questions

    def is_current(self, grant: Grant) -> bool:
        """Whether the token of *grant* is the one in force."""
        hot = self.hot.get(grant.scope)
        return hot is not None and hot.token == grant.token

    def is_gone(self, member_id: str) -> bool:
        """Whether the member or its process is dead."""
        return self.members[member_id].dead or not self.lives(member_id)

    def is_alive(self, member_id: str, now: float) -> bool:
        """Whether the member may keep its sessions."""
        return not self.is_gone(member_id) and self.members[member_id].expires > now

    def owner(self, member_id: str) -> Owner:
        """Return a member for display."""
        member = self.members[member_id].member
        return Owner(member.id, member.node, member.addr)

    def owes(self, scope: SessionId) -> bool:
        """Whether *scope* has unsettled commands."""
        return any(not c.settled for c in self.sessions[scope].commands.values())

    def entries_of(self, scope: SessionId, run_id: str) -> tuple[TapeEntry, ...]:
        """Return the strict facts of a run in *scope*."""
        entries = self.sessions[scope].entries
        return tuple(
            entry
            for _, entry in sorted(entries.items())
            if entry.fact.is_execution and entry.fact.source_id == run_id
        )

    def replica(self, scope: SessionId) -> Replica:
        """Return the projections of *scope*."""
        session = self.sessions.get(scope)
        return Replica() if session is None else session.replica
