"""What clients of the gateway send, and what they are sent.

The protocol is ACP with requests of our own beside it: `METHODS` has every one of them,
with the types of its parameters and its result, the scope it needs and how long it may
take. What is in no type here is not on the wire.
"""

from __future__ import annotations

from ._agents import AgentDto as AgentDto, agent_dto as agent_dto, dto_kind as dto_kind
from ._bounds import (
    MAX_FRAME_BYTES as MAX_FRAME_BYTES,
    MAX_PAGE as MAX_PAGE,
    MAX_PARTS as MAX_PARTS,
    MAX_SLICE as MAX_SLICE,
    Content as Content,
)
from ._clients import (
    AUTHENTICATE as AUTHENTICATE,
    ENDED as ENDED,
    EVENT as EVENT,
    SCOPES as SCOPES,
    Authenticate as Authenticate,
    Authenticated as Authenticated,
    CloseCode as CloseCode,
    EndedNotice as EndedNotice,
    EventNotice as EventNotice,
    Opcode as Opcode,
    Scope as Scope,
    server_frame as server_frame,
)
from ._cuts import (
    PAGE_BYTES as PAGE_BYTES,
    attached as attached,
    event_message as event_message,
    fit_inputs as fit_inputs,
    fit_message as fit_message,
    interactions_of as interactions_of,
    message_from as message_from,
    page_of as page_of,
    slice_of as slice_of,
)
from ._insight import (
    ActorItem as ActorItem,
    ActorTree as ActorTree,
    AddAgent as AddAgent,
    AgentList as AgentList,
    AgentRef as AgentRef,
    JournalEntry as JournalEntry,
    JournalPage as JournalPage,
    ListAgents as ListAgents,
    ListSkills as ListSkills,
    Metrics as Metrics,
    NoParams as NoParams,
    OneAgent as OneAgent,
    ReadJournal as ReadJournal,
    SetAgent as SetAgent,
    SkillItem as SkillItem,
    SkillList as SkillList,
)
from ._lives import (
    MAX_LISTED as MAX_LISTED,
    ArchiveSession as ArchiveSession,
    AssessMove as AssessMove,
    Compact as Compact,
    CompactResult as CompactResult,
    ForkSession as ForkSession,
    ImportedThread as ImportedThread,
    ImportLegacy as ImportLegacy,
    ImportResult as ImportResult,
    MoveAll as MoveAll,
    MovedAll as MovedAll,
    MoveImpact as MoveImpact,
    MoveSample as MoveSample,
    MoveSession as MoveSession,
    RestoredFile as RestoredFile,
    Rewind as Rewind,
    RewindResult as RewindResult,
    Undone as Undone,
)
from ._methods import (
    DEADLINES as DEADLINES,
    MAX_SUBMISSIONS as MAX_SUBMISSIONS,
    METHODS as METHODS,
    PREFIX as PREFIX,
    DeadlineClass as DeadlineClass,
    Method as Method,
)
from ._prompts import (
    AnswerPending as AnswerPending,
    EditPendingInput as EditPendingInput,
    InputAccepted as InputAccepted,
    InputList as InputList,
    InputRef as InputRef,
    InteractionList as InteractionList,
    MovePendingInput as MovePendingInput,
    PromptResult as PromptResult,
    QueueInput as QueueInput,
    SendPrompt as SendPrompt,
    SteerTurn as SteerTurn,
)
from ._schema import gateway_schema as gateway_schema, typescript as typescript
from ._sessions import (
    Attach as Attach,
    Attached as Attached,
    BlockSlice as BlockSlice,
    Configure as Configure,
    CreateSession as CreateSession,
    Cut as Cut,
    ListSessions as ListSessions,
    MessagePage as MessagePage,
    Nothing as Nothing,
    OneMessage as OneMessage,
    OneSession as OneSession,
    ReadBlock as ReadBlock,
    ReadMessage as ReadMessage,
    ReadMessages as ReadMessages,
    SearchHit as SearchHit,
    SearchMessages as SearchMessages,
    SearchResult as SearchResult,
    SessionItem as SessionItem,
    SessionKey as SessionKey,
    SessionList as SessionList,
    SessionRef as SessionRef,
    Settings as Settings,
)
