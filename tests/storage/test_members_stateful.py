"""Random schedules of three members with stalls, kills and takeovers, on a model.

The model is a few dictionaries: who owns what by which token, how long each tape is,
what is owed. Every store must answer as it does.
"""

from __future__ import annotations

from contextlib import ExitStack

import attrs
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from kit.stores import Peer, bootstrap, event, open_world

from greenroom.protocol import SessionId
from greenroom.storage import (
    Appended,
    Fenced,
    Grant,
    HeadMoved,
    Held,
    MemberLost,
    Posted,
    Seen,
    verify,
)

TTL = 10.0
SCOPES = [SessionId("s1"), SessionId("s2")]
scopes = st.sampled_from(SCOPES)
names = st.sampled_from(["one", "two", "three"])
commands = st.sampled_from(["c1", "c2", "c3"])


@attrs.define
class ModelMember:
    peer: Peer
    expires: float
    killed: bool = False
    dead: bool = False


@attrs.define
class ModelSession:
    owner: str | None = None
    token: int = 0
    head: int = 0
    open: list[str] = attrs.field(factory=list)
    seen: set[str] = attrs.field(factory=set)


class Schedules(RuleBasedStateMachine):
    """Members join, work, stall and die in any order."""

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.world = self.stack.enter_context(open_world(self.kind))
        self.watcher = self.world.join("watcher", ttl=1e9)
        self.now = 0.0
        self.facts = 0
        self.members: dict[str, ModelMember] = {}
        self.sessions = {scope: ModelSession() for scope in SCOPES}
        self.grants: dict[tuple[str, SessionId], Grant] = {}

    def teardown(self) -> None:
        self.stack.close()

    def alive(self, name: str) -> bool:
        member = self.members[name]
        return not member.killed and not member.dead and member.expires > self.now

    #### Members

    @rule(name=names)
    def join(self, name: str) -> None:
        if name not in self.members:
            peer = self.world.join(name, TTL, self.now)
            self.members[name] = ModelMember(peer, self.now + TTL)

    @rule(seconds=st.floats(0.5, 8.0))
    def stall(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        name = self.running(data)
        if name is None:
            return
        member = self.members[name]
        result = member.peer.store.beat(member.peer.member, now=self.now)
        assert isinstance(result, MemberLost) == member.dead
        if not member.dead:
            member.expires = self.now + TTL

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        name = self.running(data)
        if name is not None:
            self.world.kill(self.members[name].peer)
            self.members[name].killed = True

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = self.running(data)
        if name is None:
            return
        peer = self.members.pop(name).peer
        peer.store.leave(peer.member, now=self.now)
        for session in self.sessions.values():
            if session.owner == name:
                session.owner, session.token = None, session.token + 1
        self.grants = {k: g for k, g in self.grants.items() if k[0] != name}
        self.world.kill(peer)

    @precondition(lambda self: any(m.killed for m in self.members.values()))
    @rule()
    def forget_the_killed(self) -> None:
        # A killed process is started again: a new incarnation of the same name.
        for name in [n for n, m in self.members.items() if m.killed]:
            for session in self.sessions.values():
                if session.owner == name:
                    session.owner = f"ghost of {name}"
            del self.members[name]
            self.grants = {k: g for k, g in self.grants.items() if k[0] != name}

    #### Sessions

    @precondition(lambda self: self.members)
    @rule(data=st.data(), scope=scopes)
    def acquire(self, data: st.DataObject, scope: SessionId) -> None:
        name = self.running(data)
        if name is None:
            return
        member, session = self.members[name], self.sessions[scope]
        result = member.peer.store.acquire(member.peer.member, scope, now=self.now)
        owner = session.owner
        if member.dead:
            assert isinstance(result, MemberLost)
        elif owner in self.members and owner != name and self.alive(owner):
            assert isinstance(result, Held)
            assert result.owner.member_id == self.members[owner].peer.member.id
        else:
            assert isinstance(result, Grant)
            if owner in self.members and owner != name:
                self.members[owner].dead = True
            session.owner, session.token = name, session.token + 1
            assert (result.token, result.head) == (session.token, session.head)
            self.grants[name, scope] = result

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), right=st.booleans(), command=st.none() | commands)
    def append(self, data: st.DataObject, right: bool, command: str | None) -> None:
        held = self.grant(data)
        if held is None:
            return
        name, grant = held
        session = self.sessions[grant.scope]
        head = session.head if right else session.head + 1
        self.facts += 1
        facts = [event(self.facts)] if session.head else bootstrap(grant.scope)
        settles = [command] if command in session.seen else []
        store = self.members[name].peer.store
        result = store.append(grant, head, facts, settles, now=self.now)
        if grant.token != session.token:
            assert isinstance(result, Fenced)
        elif not right:
            assert result == HeadMoved(grant.scope, session.head)
        else:
            assert isinstance(result, Appended)
            session.head += len(facts)
            assert result.head == session.head
            session.open = [c for c in session.open if c not in settles]

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = self.grant(data)
        if held is None:
            return
        name, grant = held
        self.members[name].peer.store.release(grant, now=self.now)
        session = self.sessions[grant.scope]
        if grant.token == session.token:
            session.owner, session.token = None, session.token + 1

    @rule(scope=scopes, command=commands)
    def post(self, scope: SessionId, command: str) -> None:
        session = self.sessions[scope]
        result = self.watcher.store.post(scope, command, "{}", now=self.now)
        if command in session.seen:
            assert result == Seen(same_body=True)
        else:
            assert result == Posted()
            session.open.append(command)
            session.seen.add(command)

    #### What must hold

    @invariant()
    def heads_are_the_model_s(self) -> None:
        found = dict(self.watcher.store.heads(SCOPES))
        assert found == {s: m.head for s, m in self.sessions.items() if m.head}

    @invariant()
    def owed_is_the_model_s(self) -> None:
        for member in self.members.values():
            if not member.killed:
                found = member.peer.store.owed(member.peer.member)
                owns = self.owned_by(member)
                assert found == [s for s in owns if self.sessions[s].open]

    @invariant()
    def tapes_are_whole(self) -> None:
        assert verify(self.watcher.store) == []

    def owned_by(self, member: ModelMember) -> list[SessionId]:
        name = next(n for n, m in self.members.items() if m is member)
        return [s for s, m in self.sessions.items() if m.owner == name]

    def running(self, data: st.DataObject) -> str | None:
        running = sorted(n for n, m in self.members.items() if not m.killed)
        return data.draw(st.sampled_from(running)) if running else None

    def grant(self, data: st.DataObject) -> tuple[str, Grant] | None:
        usable = sorted(key for key in self.grants if not self.members[key[0]].killed)
        if not usable:
            return None
        key = data.draw(st.sampled_from(usable))
        return key[0], self.grants[key]


class SqliteSchedules(Schedules):
    kind = "sqlite"


Schedules.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
SqliteSchedules.TestCase.settings = settings(max_examples=12, stateful_step_count=25)
TestMemory = Schedules.TestCase
TestSqlite = SqliteSchedules.TestCase
