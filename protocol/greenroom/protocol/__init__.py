"""What is said: values, codecs and the machines over them.

No I/O, no clock, no randomness, no trio: time, ids and jitter are arguments.
Everything here is synchronous and safe to test without a loop.
"""

from __future__ import annotations

from ._agent_config import (
    CONFIG_KEYS as CONFIG_KEYS,
    DEFAULT_SLOTS as DEFAULT_SLOTS,
    FAIL_CLOSED as FAIL_CLOSED,
    MAX_CONFIG_BYTES as MAX_CONFIG_BYTES,
    AgentConfig as AgentConfig,
    AgentRefusedError as AgentRefusedError,
    Merged as Merged,
    ModelChoice as ModelChoice,
    SubagentSlot as SubagentSlot,
    config_members as config_members,
    config_text as config_text,
    decode_config as decode_config,
    merge_patch as merge_patch,
    normal_pairs as normal_pairs,
    normal_slots as normal_slots,
    normal_threshold as normal_threshold,
    patched_config as patched_config,
    resolve as resolve,
    resolve_merged as resolve_merged,
)
from ._agents import (
    MAX_AGENT_ID as MAX_AGENT_ID,
    MAX_AGENT_NAME as MAX_AGENT_NAME,
    MAX_AGENTS as MAX_AGENTS,
    MAX_AVATAR_BYTES as MAX_AVATAR_BYTES,
    MAX_DESCRIPTION as MAX_DESCRIPTION,
    MAX_ICON as MAX_ICON,
    NATIVE_PREFIX as NATIVE_PREFIX,
    AgentDescriptor as AgentDescriptor,
    AgentNotFoundError as AgentNotFoundError,
    AgentRow as AgentRow,
    AgentUnavailableError as AgentUnavailableError,
    CatalogueEntry as CatalogueEntry,
    Launch as Launch,
    ManualAcpAgent as ManualAcpAgent,
    NativeAgent as NativeAgent,
    RegistryAcpAgent as RegistryAcpAgent,
    RegistryReference as RegistryReference,
    UnavailableReason as UnavailableReason,
    catalogue_entry as catalogue_entry,
    chosen_agent as chosen_agent,
    decode_agent as decode_agent,
    descriptor_from_json as descriptor_from_json,
)
from ._canonical import (
    canonical_json as canonical_json,
    safe_json as safe_json,
    safe_text as safe_text,
    sha256_hex as sha256_hex,
)
from ._commands import Command as Command, PromptCommand as PromptCommand
from ._context_recovery import RecoveryLatch as RecoveryLatch
from ._counters import (
    MAX_SAFE_INTEGER as MAX_SAFE_INTEGER,
    CounterError as CounterError,
    Counters as Counters,
)
from ._downgrade import (
    CUT_RESULT_CHARS as CUT_RESULT_CHARS,
    NOTHING_FITS as NOTHING_FITS,
    TOO_SMALL as TOO_SMALL,
    fitted_results as fitted_results,
    is_note as is_note,
)
from ._draft import (
    MAX_ARGUMENT_CHARS as MAX_ARGUMENT_CHARS,
    MAX_ROUND_CHARS as MAX_ROUND_CHARS,
    ROUND_FULL as ROUND_FULL,
    Change as Change,
    Draft as Draft,
    item_kind as item_kind,
)
from ._errors import (
    CorruptStoreError as CorruptStoreError,
    DiskFullError as DiskFullError,
    GreenroomError as GreenroomError,
    InternalError as InternalError,
    JournalError as JournalError,
    LocalProtocolError as LocalProtocolError,
    NewerSchemaError as NewerSchemaError,
    RemoteProtocolError as RemoteProtocolError,
    StorageError as StorageError,
    StoreLockedError as StoreLockedError,
)
from ._events import (
    EVENTS_VERSION as EVENTS_VERSION,
    Event as Event,
    Interaction as Interaction,
    InteractionSettled as InteractionSettled,
    MessagesChanged as MessagesChanged,
    Plan as Plan,
    PlanEntry as PlanEntry,
    PlanUpdated as PlanUpdated,
    SessionSettings as SessionSettings,
    SessionState as SessionState,
    SessionUpdated as SessionUpdated,
    Snapshot as Snapshot,
    StatusChanged as StatusChanged,
    StreamCompleted as StreamCompleted,
    StreamFailed as StreamFailed,
    StreamUpdated as StreamUpdated,
    WaitReason as WaitReason,
    rate_limit_notice as rate_limit_notice,
)
from ._facts import (
    EXECUTION_PREFIX as EXECUTION_PREFIX,
    MAX_PAYLOAD_BYTES as MAX_PAYLOAD_BYTES,
    Fact as Fact,
    FactKind as FactKind,
    SourceType as SourceType,
    TapeEntry as TapeEntry,
    make_payload as make_payload,
)
from ._feed import events_of as events_of
from ._fit import (
    MAX_BLOCK_BYTES as MAX_BLOCK_BYTES,
    fit_block as fit_block,
    in_revisions as in_revisions,
    revisions as revisions,
)
from ._hooks import (
    HOOK_GROUPS as HOOK_GROUPS,
    HOOK_NAMES as HOOK_NAMES,
    MAX_HOOK_TEXT as MAX_HOOK_TEXT,
    HookEvent as HookEvent,
    PermissionRequest as PermissionRequest,
    PostToolUse as PostToolUse,
    PostToolUseFailure as PostToolUseFailure,
    PreToolUse as PreToolUse,
    RunEnd as RunEnd,
    SessionStart as SessionStart,
    UserPromptSubmit as UserPromptSubmit,
    hook_names as hook_names,
)
from ._ids import (
    DEFAULT_AGENT_ID as DEFAULT_AGENT_ID,
    ItemId as ItemId,
    MessageId as MessageId,
    OperationId as OperationId,
    RunId as RunId,
    SessionId as SessionId,
)
from ._interactions import (
    Answer as Answer,
    Deny as Deny,
    Grant as Grant,
    InteractionError as InteractionError,
    Other as Other,
    Reply as Reply,
)
from ._journal import (
    JOURNAL_NAMES as JOURNAL_NAMES,
    DispatchCommitted as DispatchCommitted,
    JournalRecord as JournalRecord,
    RunKind as RunKind,
    RunOutcome as RunOutcome,
    RunStarted as RunStarted,
    RunTerminal as RunTerminal,
    ToolOutcome as ToolOutcome,
    ToolSource as ToolSource,
    ToolTarget as ToolTarget,
    journal_fact as journal_fact,
    journal_key as journal_key,
    journal_record as journal_record,
    record_run_id as record_run_id,
)
from ._lanes import (
    MAX_QUEUED as MAX_QUEUED,
    InputChange as InputChange,
    PendingInputs as PendingInputs,
    Wake as Wake,
)
from ._messages import (
    ActionBlock as ActionBlock,
    AssistantMessage as AssistantMessage,
    Block as Block,
    BlockStatus as BlockStatus,
    BudgetExcess as BudgetExcess,
    ChatMessage as ChatMessage,
    Diff as Diff,
    ErrorBlock as ErrorBlock,
    ImageBlock as ImageBlock,
    ImagePart as ImagePart,
    InteractionEnd as InteractionEnd,
    InteractionOrigin as InteractionOrigin,
    Location as Location,
    MessageMetadata as MessageMetadata,
    MessageRecord as MessageRecord,
    MessageStatus as MessageStatus,
    ProgressSnapshot as ProgressSnapshot,
    QuestionOption as QuestionOption,
    Reasoning as Reasoning,
    ReasoningBlock as ReasoningBlock,
    SystemMessage as SystemMessage,
    TextBlock as TextBlock,
    TextPart as TextPart,
    ToolCall as ToolCall,
    ToolCallBlock as ToolCallBlock,
    ToolDefinition as ToolDefinition,
    ToolKind as ToolKind,
    ToolMessage as ToolMessage,
    Usage as Usage,
    UserMessage as UserMessage,
    interaction_end as interaction_end,
)
from ._pending import (
    InputRefusedError as InputRefusedError,
    PendingInput as PendingInput,
    joined as joined,
    merged_input as merged_input,
)
from ._permission import (
    PermissionMode as PermissionMode,
    PermissionNeeds as PermissionNeeds,
    PermissionVerdict as PermissionVerdict,
    permission_verdict as permission_verdict,
    tool_layer_mode as tool_layer_mode,
)
from ._progress import (
    Observation as Observation,
    normalise_result as normalise_result,
    observe as observe,
)
from ._recovery import (
    INTERRUPTED as INTERRUPTED,
    MAX_DETAILS as MAX_DETAILS,
    CorruptionReason as CorruptionReason,
    RecoveryDetail as RecoveryDetail,
    RunClass as RunClass,
    RunVerdict as RunVerdict,
    classify_run as classify_run,
    interrupted as interrupted,
    is_kept_pending as is_kept_pending,
    recovery_details as recovery_details,
)
from ._rejection import (
    IMAGE_NOTE as IMAGE_NOTE,
    REASONING_NOTE as REASONING_NOTE,
    RejectedItem as RejectedItem,
    neutralised as neutralised,
    rejected_item as rejected_item,
)
from ._request import ModelRequest as ModelRequest, ToolChoice as ToolChoice
from ._retry import (
    MAX_RETRIES as MAX_RETRIES,
    MAX_SERVER_DELAY_MS as MAX_SERVER_DELAY_MS,
    FailureClass as FailureClass,
    RetryBudget as RetryBudget,
    RetryDecision as RetryDecision,
    RetryVerdict as RetryVerdict,
    backoff_ms as backoff_ms,
    classify_failure as classify_failure,
    decide_retry as decide_retry,
    server_delay_ms as server_delay_ms,
)
from ._review import (
    ASK_USER as ASK_USER,
    MAX_REVIEWED_CALL_CHARS as MAX_REVIEWED_CALL_CHARS,
    REVIEW_INSTRUCTIONS as REVIEW_INSTRUCTIONS,
    REVIEWED_CHARS as REVIEWED_CHARS,
    REVIEWED_MESSAGES as REVIEWED_MESSAGES,
    Review as Review,
    ReviewDecision as ReviewDecision,
    ReviewedCall as ReviewedCall,
    can_be_reviewed as can_be_reviewed,
    parse_review as parse_review,
    review_messages as review_messages,
)
from ._run import (
    NO_PROGRESS as NO_PROGRESS,
    RUN_TRANSITIONS as RUN_TRANSITIONS,
    AskModel as AskModel,
    BatchEnded as BatchEnded,
    Begun as Begun,
    CallsRefused as CallsRefused,
    CancelWord as CancelWord,
    End as End,
    Fault as Fault,
    Faulted as Faulted,
    Interrupted as Interrupted,
    RefuseCalls as RefuseCalls,
    RoundEnded as RoundEnded,
    RunCalls as RunCalls,
    RunEvent as RunEvent,
    RunMachine as RunMachine,
    RunState as RunState,
    Terminal as Terminal,
    interrupted_terminal as interrupted_terminal,
    round_limit as round_limit,
)
from ._stream import (
    CONTROL_EVENTS as CONTROL_EVENTS,
    ImageData as ImageData,
    PermissionAsked as PermissionAsked,
    PlanProposed as PlanProposed,
    ProviderFailure as ProviderFailure,
    ProviderSearch as ProviderSearch,
    ProviderUrlSource as ProviderUrlSource,
    RateLimited as RateLimited,
    ReasoningDelta as ReasoningDelta,
    Stop as Stop,
    StopReason as StopReason,
    StreamEvent as StreamEvent,
    TextDelta as TextDelta,
    ToolCallChunk as ToolCallChunk,
    ToolCallEnd as ToolCallEnd,
    ToolCallStart as ToolCallStart,
    UsageReported as UsageReported,
)
from ._trace import (
    MAX_TRACE_BYTES as MAX_TRACE_BYTES,
    AttemptTrace as AttemptTrace,
    WireRequest as WireRequest,
    attempt_trace as attempt_trace,
)
from ._usage import add_usage as add_usage
from ._view import ViewBuilder as ViewBuilder, sendable_arguments as sendable_arguments
