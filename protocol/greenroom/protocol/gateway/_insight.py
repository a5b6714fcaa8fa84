"""Requests that look into the engine, and those about its agents."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .._ids import MessageId, RunId
from .._messages import Usage
from ._agents import AgentDto
from ._bounds import FilePath, Id, Place, ShortText


class NoParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """There is nothing to say."""


#### Agents


class AgentRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Names an agent."""

    agent_id: Id


class ListAgents(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Agents by their ids, from the one behind ``after`` on."""

    after: Id | None = None
    """`next` of the page before."""


class AgentList(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page, with those that can't be run; without ``next`` it is the last one."""

    agents: tuple[AgentDto, ...]
    next: str | None = None


class OneAgent(msgspec.Struct, frozen=True):
    """An agent."""

    agent: AgentDto


class AddAgent(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """Make an agent: a native one, or with a command one in a process of its own.

    ``kind`` may be said by its old names too, ``type`` and ``agentType``.
    """

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    description: ShortText = ""
    kind: Literal["native", "acp", "deepchat"] | None = None
    type: Literal["native", "acp", "deepchat"] | None = None
    agent_type: Literal["native", "acp", "deepchat"] | None = None
    config: dict[str, Any] | None = None
    """Of a native agent."""
    command: FilePath | None = None
    args: Annotated[tuple[str, ...], Meta(max_length=256)] = ()
    env: Annotated[dict[str, str], Meta(max_length=256)] = {}

    @property
    def names_kind(self) -> bool:
        """Whether the kind is said, by whichever name."""
        return bool(self.kind or self.type or self.agent_type)


class SetAgent(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """Change an agent; what is absent stays. ``config`` is a merge patch (RFC 7396)."""

    agent_id: Id
    name: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    description: ShortText | None = None
    icon: Annotated[str, Meta(max_length=1_000)] | None = None
    enabled: bool | None = None
    config: dict[str, Any] | None = None


#### Skills


class ListSkills(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Skills by their names, from the one behind ``after`` on."""

    after: Id | None = None


class SkillItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Skill that is installed."""

    name: str
    description: str | None = None
    """Absent: its ``SKILL.md`` can't be used."""
    agents: tuple[str, ...]
    """Those that have it, the first `MAX_PAGE` of them."""


class SkillList(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page, by name; without ``next`` it is the last one."""

    skills: tuple[SkillItem, ...]
    next: str | None = None


#### The engine


class ActorItem(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """One actor, or one operation. Times are seconds, as of this answer."""

    path: str
    grade: str
    state: str
    age: float
    """Since it is in this state."""
    work: int = 0
    """Messages that wait, or are in hand."""
    control: int = 0
    current: str | None = None
    """The message that it handles."""
    remaining: float | None = None
    """Until what it does must be over."""
    cancel_cause: str | None = None
    restarts: int = 0


class ActorTree(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Every actor, parents before children; cut after so many."""

    actors: tuple[ActorItem, ...]
    left_out: int = 0


class Metrics(msgspec.Struct, frozen=True):
    """Counters and gauges, by name, as ``/metrics`` has them."""

    values: dict[str, float]


#### The journal of a session


class ReadJournal(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """What was done in a session, of one run or of all, the newest page first."""

    session_id: Id
    run_id: Id | None = None
    before: Place | None = None
    """`next` of the page before."""


class JournalEntry(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"
):
    """One thing that was done; which fields it has depends on its kind."""

    seq: int
    at: float
    """Seconds since the epoch."""
    kind: Literal[
        "run_started",
        "run_ended",
        "request",
        "attempt",
        "dispatch",
        "outcome",
        "compaction",
        "retraction",
        "recovery",
    ]
    run_id: RunId | None = None
    message_id: MessageId | None = None
    run_kind: str | None = None
    request_seq: int | None = None
    round: int | None = None
    attempt: int | None = None
    provider: str | None = None
    model: str | None = None
    status: str | None = None
    """Of an attempt: completed, error, aborted or context_overflow; of a run or a
    compaction: its outcome; of a recovery: the class of the run."""
    reason: str | None = None
    """The stop reason, or why something failed."""
    retry_delay: float | None = None
    """Seconds until the next attempt."""
    usage: Usage | None = None
    cost: float | None = None
    """US dollars of the turn so far, where a run ended."""
    call_id: str | None = None
    tool: str | None = None
    is_error: bool | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None


class JournalPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Entries, oldest first; with ``next`` there may be older ones before it."""

    entries: tuple[JournalEntry, ...]
    next: int | None = None
