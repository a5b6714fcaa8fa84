"""What a request to a model holds, and what gives way when it is too much: pure.

The order of a view is `ViewBuilder`'s; here is where a history begins (anchors and
checkpoint), what a request weighs, whether it fits, and the manifest that says all of
it on the tape. No clock, no I/O: numbers and times are arguments.
"""

from __future__ import annotations

from ._assembly import (
    Numbers as Numbers,
    RequestIdentity as RequestIdentity,
    Sent as Sent,
    TapeState as TapeState,
    WindowSource as WindowSource,
    assemble_manifest as assemble_manifest,
)
from ._boundary import (
    HANDOFF as HANDOFF,
    RECONSTRUCTION_NAMES as RECONSTRUCTION_NAMES,
    SUMMARY_RESET as SUMMARY_RESET,
    Boundary as Boundary,
    Reconstruction as Reconstruction,
    ReconstructionName as ReconstructionName,
    boundary_of as boundary_of,
    newest_boundary as newest_boundary,
    reconstruction_fact as reconstruction_fact,
)
from ._checkpoint import (
    NOTICE as NOTICE,
    Checkpoint as Checkpoint,
    checkpoint_of as checkpoint_of,
    fenced as fenced,
)
from ._command import COMPACT as COMPACT, compact_focus as compact_focus
from ._compaction import (
    TRIGGER_NAMES as TRIGGER_NAMES,
    CompactionPlan as CompactionPlan,
    GapReason as GapReason,
    Outcome as Outcome,
    Pair as Pair,
    Trigger as Trigger,
    accepts_summary as accepts_summary,
    checkpoint_tokens as checkpoint_tokens,
    merged_gaps as merged_gaps,
    pairs_of as pairs_of,
    plan_compaction as plan_compaction,
    record_tokens as record_tokens,
    retained_pairs as retained_pairs,
    trigger_tokens as trigger_tokens,
)
from ._manifest import (
    VIEW_ASSEMBLED as VIEW_ASSEMBLED,
    ExcludedRange as ExcludedRange,
    ExecutionContract as ExecutionContract,
    ExecutionRef as ExecutionRef,
    Hashes as Hashes,
    IncludedPart as IncludedPart,
    Prefix as Prefix,
    PrefixChange as PrefixChange,
    StoredManifest as StoredManifest,
    TokenBudget as TokenBudget,
    ViewManifest as ViewManifest,
    manifest_fact as manifest_fact,
    manifest_hash as manifest_hash,
    stored_manifest as stored_manifest,
)
from ._pin import (
    PinnedUser as PinnedUser,
    first_user as first_user,
    inherited_pin as inherited_pin,
    pinned_user as pinned_user,
)
from ._policy import (
    Chosen as Chosen,
    RequestPolicy as RequestPolicy,
    Selection as Selection,
    ShadowPolicy as ShadowPolicy,
    TaskType as TaskType,
    ViewOrigin as ViewOrigin,
    ViewPolicy as ViewPolicy,
    choose_policy as choose_policy,
    request_policy as request_policy,
)
from ._preflight import (
    CRAMPED as CRAMPED,
    DEFAULT_OUTPUT as DEFAULT_OUTPUT,
    MAX_OUTPUT as MAX_OUTPUT,
    Drops as Drops,
    Preflight as Preflight,
    Weights as Weights,
    drops as drops,
    exceeds_window as exceeds_window,
    output_cap as output_cap,
)
from ._pressure import (
    ContextPressure as ContextPressure,
    PressureKind as PressureKind,
    silent_pressure as silent_pressure,
)
from ._sequence import (
    RecoveryError as RecoveryError,
    RecoverySequence as RecoverySequence,
    Step as Step,
    strict_output as strict_output,
    strict_reserve as strict_reserve,
)
from ._stubs import (
    RECALL_TOOLS as RECALL_TOOLS,
    STUB_OVER as STUB_OVER,
    closed_units as closed_units,
    stub_results as stub_results,
    stub_text as stub_text,
)
from ._summary import (
    HEADINGS as HEADINGS,
    LEAST_STRICT_CHUNK as LEAST_STRICT_CHUNK,
    MAX_CHUNKS as MAX_CHUNKS,
    MAX_FOCUS as MAX_FOCUS,
    Chunk as Chunk,
    accepted_text as accepted_text,
    chunk_tokens as chunk_tokens,
    chunks_of as chunks_of,
    conversation_tokens as conversation_tokens,
    fits_summariser as fits_summariser,
    summary_output as summary_output,
    summary_request as summary_request,
)
from ._tally import (
    MEDIA_TOKENS as MEDIA_TOKENS,
    Mark as Mark,
    Tally as Tally,
    message_tokens as message_tokens,
    tools_hash as tools_hash,
    tools_tokens as tools_tokens,
)
from ._usage_anchor import (
    RequestKind as RequestKind,
    UsageAnchor as UsageAnchor,
    generation_hash as generation_hash,
    prompt_tokens as prompt_tokens,
    usage_anchor as usage_anchor,
)
