"""Every request that the gateway takes beyond ACP: one closed table (SES-11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import attrs
import msgspec

from ._clients import Scope
from ._insight import (
    ActorTree,
    AddAgent,
    AgentList,
    AgentRef,
    JournalPage,
    ListAgents,
    ListSkills,
    Metrics,
    NoParams,
    OneAgent,
    ReadJournal,
    SetAgent,
    SkillList,
)
from ._lives import (
    ArchiveSession,
    AssessMove,
    Compact,
    CompactResult,
    ForkSession,
    ImportLegacy,
    ImportResult,
    MoveAll,
    MovedAll,
    MoveImpact,
    MoveSession,
    Rewind,
    RewindResult,
    Undone,
)
from ._prompts import (
    AnswerPending,
    EditPendingInput,
    InputAccepted,
    InputList,
    InputRef,
    InteractionList,
    MovePendingInput,
    PromptResult,
    QueueInput,
    SendPrompt,
    SteerTurn,
)
from ._sessions import (
    Attach,
    Attached,
    BlockSlice,
    Configure,
    CreateSession,
    ListSessions,
    MessagePage,
    Nothing,
    OneMessage,
    OneSession,
    ReadBlock,
    ReadMessage,
    ReadMessages,
    SearchMessages,
    SearchResult,
    SessionList,
    SessionRef,
    Settings,
)

DeadlineClass = Literal["lookup", "list", "send", "stop", "interaction"]

DEADLINES: Final[Mapping[DeadlineClass, float]] = {
    "lookup": 5.0,
    "list": 15.0,
    "send": 1_800.0,
    "stop": 5.0,
    "interaction": 1_800.0,
}
"""Seconds that a request may take, by its class (SES-21)."""

MAX_SUBMISSIONS: Final = 32
"""Requests of the class ``send`` that a client may have open at once (SES-21)."""

PREFIX: Final = "_greenroom/"


@attrs.frozen
class Method:
    """One kind of request."""

    name: str
    params: type[msgspec.Struct]
    result: type[msgspec.Struct]
    scope: Scope
    deadline: DeadlineClass

    @property
    def seconds(self) -> float:
        """How long it may take."""
        return DEADLINES[self.deadline]


def _table(*rows: Method) -> Mapping[str, Method]:
    return {row.name: row for row in rows}


def _read(
    name: str,
    params: type[msgspec.Struct],
    result: type[msgspec.Struct],
    deadline: DeadlineClass = "lookup",
) -> Method:
    return Method(PREFIX + name, params, result, "read", deadline)


def _write(
    name: str,
    params: type[msgspec.Struct],
    result: type[msgspec.Struct],
    deadline: DeadlineClass = "send",
) -> Method:
    return Method(PREFIX + name, params, result, "write", deadline)


def _admin(
    name: str, params: type[msgspec.Struct], result: type[msgspec.Struct]
) -> Method:
    return Method(PREFIX + name, params, result, "admin", "send")


METHODS: Final[Mapping[str, Method]] = _table(
    # Sessions
    _read("session/list", ListSessions, SessionList, "list"),
    _read("session/get", SessionRef, OneSession),
    _write("session/create", CreateSession, OneSession),
    _read("session/attach", Attach, Attached),
    _read("session/detach", SessionRef, Nothing),
    _read("session/snapshot", SessionRef, Attached),
    _read("session/messages", ReadMessages, MessagePage),
    _read("session/message", ReadMessage, OneMessage),
    _read("session/block", ReadBlock, BlockSlice),
    _read("session/search", SearchMessages, SearchResult, "list"),
    _read("session/settings", SessionRef, Settings),
    _write("session/configure", Configure, Settings),
    _write("session/fork", ForkSession, OneSession),
    _write("session/archive", ArchiveSession, OneSession),
    _write("session/move", MoveSession, Settings),
    _write("session/assess_move", AssessMove, MoveImpact, "list"),
    _admin("session/move_all", MoveAll, MovedAll),
    _admin("session/delete", SessionRef, Nothing),
    _write("session/rewind", Rewind, RewindResult),
    _write("session/clear", SessionRef, Nothing),
    _write("session/compact", Compact, CompactResult),
    _write("session/undo_compaction", SessionRef, Undone),
    # Turns
    _write("prompt", SendPrompt, PromptResult),
    _write("queue", QueueInput, InputAccepted),
    _write("steer", SteerTurn, InputAccepted),
    _write("cancel", SessionRef, Nothing, "stop"),
    # What waits
    _read("input/list", SessionRef, InputList),
    _write("input/edit", EditPendingInput, InputList),
    _write("input/move", MovePendingInput, InputList),
    _write("input/delete", InputRef, InputList),
    _write("input/promote", InputRef, InputList),
    _write("input/retry", InputRef, InputList),
    _write("input/degrade", InputRef, InputList),
    _write("input/release", SessionRef, InputList),
    _read("interaction/list", SessionRef, InteractionList),
    _write("interaction/answer", AnswerPending, Nothing, "interaction"),
    # Agents and Skills
    _read("agent/list", ListAgents, AgentList, "list"),
    _read("agent/get", AgentRef, OneAgent),
    _admin("agent/add", AddAgent, OneAgent),
    _admin("agent/set", SetAgent, OneAgent),
    _admin("agent/reset", AgentRef, OneAgent),
    _admin("agent/remove", AgentRef, Nothing),
    _read("skill/list", ListSkills, SkillList, "list"),
    # The engine
    _read("tree", NoParams, ActorTree),
    _read("metrics", NoParams, Metrics),
    _read("journal", ReadJournal, JournalPage, "list"),
    _admin("legacy/import", ImportLegacy, ImportResult),
)
