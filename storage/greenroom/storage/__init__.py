"""What is kept: the store contract and its implementations.

Synchronous, on the caller's thread; no trio, because a commit must not be a
checkpoint. Expected outcomes are returned, faults are raised.
"""

from __future__ import annotations

from ._agents import AgentReader as AgentReader, AgentWriter as AgentWriter
from ._app_settings import (
    AppSettings as AppSettings,
    put_app_settings as put_app_settings,
    read_app_settings as read_app_settings,
)
from ._bindings import (
    MAX_CLIENT_ID as MAX_CLIENT_ID,
    Binding as Binding,
    BindingReader as BindingReader,
    BindingWriter as BindingWriter,
)
from ._builtin import builtin_row as builtin_row, ensure_builtin as ensure_builtin
from ._errors import (
    FencedError as FencedError,
    HeadMovedError as HeadMovedError,
    NoStoreError as NoStoreError,
    RefusedFactError as RefusedFactError,
)
from ._skill_rules import MAX_SELECTED as MAX_SELECTED
from ._skills import SkillReader as SkillReader, SkillWriter as SkillWriter
from ._store import (
    Piece as Piece,
    Reader as Reader,
    Settled as Settled,
    Store as Store,
)
from ._values import (
    MAX_FACTS as MAX_FACTS,
    MAX_OPEN_COMMANDS as MAX_OPEN_COMMANDS,
    MAX_PAGE_BYTES as MAX_PAGE_BYTES,
    SNIPPET as SNIPPET,
    Appended as Appended,
    Fenced as Fenced,
    Grant as Grant,
    HeadMoved as HeadMoved,
    Held as Held,
    InboxCommand as InboxCommand,
    Member as Member,
    MemberLost as MemberLost,
    MessageHit as MessageHit,
    OpenRun as OpenRun,
    Owner as Owner,
    Page as Page,
    Posted as Posted,
    Receipt as Receipt,
    Seen as Seen,
    SessionRow as SessionRow,
)
from .doctor import (
    MEANING as MEANING,
    Examination as Examination,
    Finding as Finding,
    FindingCode as FindingCode,
    Repair as Repair,
    examine as examine,
    repair as repair,
    salvage as salvage,
)
from .exchange import (
    MAX_LINE_BYTES as MAX_LINE_BYTES,
    ExportedSession as ExportedSession,
    Imported as Imported,
    ImportedSession as ImportedSession,
    LineProblem as LineProblem,
    export_session as export_session,
    import_sessions as import_sessions,
)
from .forks import (
    MAX_DELTA as MAX_DELTA,
    ForkDiscarded as ForkDiscarded,
    ForkMerged as ForkMerged,
    ForkRefusedError as ForkRefusedError,
    ForkStart as ForkStart,
    begin_fork as begin_fork,
    delete_fork as delete_fork,
    discard_piece as discard_piece,
    fork_scope as fork_scope,
    merge_piece as merge_piece,
    merge_receipt as merge_receipt,
)
from .hops import (
    Hop as Hop,
    HopKind as HopKind,
    Trail as Trail,
    endpoint_fact as endpoint_fact,
    messages_of_turn as messages_of_turn,
)
from .lifecycle import (
    Assigned as Assigned,
    Unfinished as Unfinished,
    assess_session as assess_session,
    assign_session as assign_session,
    clear_session as clear_session,
    drop_session as drop_session,
    filter_selection as filter_selection,
    note_deletion as note_deletion,
    pending_deletions as pending_deletions,
    unfinished as unfinished,
)
from .links import (
    LinkedTape as LinkedTape,
    TapeLink as TapeLink,
    TapeNotLinkedError as TapeNotLinkedError,
    freeze_child as freeze_child,
    link_fact as link_fact,
    linked_tape as linked_tape,
    linked_tapes as linked_tapes,
    tape_identity as tape_identity,
)
from .memory import MemoryStore as MemoryStore
from .names import (
    CONTEXT_PRESSURE as CONTEXT_PRESSURE,
    MESSAGE_RECORDED as MESSAGE_RECORDED,
    MESSAGE_RETRACTED as MESSAGE_RETRACTED,
    MODEL_CALLED as MODEL_CALLED,
    OPERATION_RECONCILED as OPERATION_RECONCILED,
    PLAN_UPDATED as PLAN_UPDATED,
    RUN_ACKNOWLEDGED as RUN_ACKNOWLEDGED,
    SESSION_ARCHIVED as SESSION_ARCHIVED,
    SESSION_CONFIGURED as SESSION_CONFIGURED,
    SESSION_FORKED as SESSION_FORKED,
    SESSION_REWOUND as SESSION_REWOUND,
    SESSION_START as SESSION_START,
    Archived as Archived,
    ModelCalled as ModelCalled,
    OperationReconciled as OperationReconciled,
    Retracted as Retracted,
    Rewound as Rewound,
    RunAcknowledged as RunAcknowledged,
    archived_fact as archived_fact,
    bootstrap_facts as bootstrap_facts,
    contribution_fact as contribution_fact,
    forked_fact as forked_fact,
    indicator_fact as indicator_fact,
    input_fact as input_fact,
    is_audit as is_audit,
    message_fact as message_fact,
    plan_fact as plan_fact,
    reconciled_fact as reconciled_fact,
    retraction_fact as retraction_fact,
    rewound_fact as rewound_fact,
    settings_fact as settings_fact,
    start_fact as start_fact,
    tool_facts as tool_facts,
)
from .recall import (
    MAX_ATTACHED_CHARS as MAX_ATTACHED_CHARS,
    MAX_ATTACHMENT_CHARS as MAX_ATTACHMENT_CHARS,
    MAX_ATTACHMENTS as MAX_ATTACHMENTS,
    Recalled as Recalled,
    TapeHit as TapeHit,
    recall_entries as recall_entries,
    search_recall as search_recall,
)
from .recovery import (
    RecoveryReport as RecoveryReport,
    SessionRecovery as SessionRecovery,
    recover as recover,
    recover_session as recover_session,
)
from .replay import (
    BoundTrace as BoundTrace,
    ReplayError as ReplayError,
    ReplaySlice as ReplaySlice,
    replay_slice as replay_slice,
    verify_slice as verify_slice,
)
from .retention import Swept as Swept, sweep as sweep, vacuum as vacuum
from .sessions import (
    MAX_TITLE as MAX_TITLE,
    archive_session as archive_session,
    rename_session as rename_session,
)
from .skills import (
    change_skill_state as change_skill_state,
    filter_selections as filter_selections,
    put_skill_state as put_skill_state,
    read_skill_state as read_skill_state,
    remap_selections as remap_selections,
)
from .sqlite import (
    SqliteReader as SqliteReader,
    SqliteStore as SqliteStore,
    open_reader as open_reader,
    open_store as open_store,
)
from .tape import Tape as Tape
from .verify import (
    Problem as Problem,
    verify as verify,
    verify_session as verify_session,
)
