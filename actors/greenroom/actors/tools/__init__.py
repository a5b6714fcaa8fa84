"""Tools: the port a run drives them through, the registry, and the built-in ones.

A tool says what a call needs before it may run, and has its effect only after the
run made the dispatch durable. What the model sends is hostile until it has been
decoded against the tool's schema and judged against the workspace.
"""

from __future__ import annotations

from ._arguments import (
    decode_arguments as decode_arguments,
    object_schema as object_schema,
)
from ._function import tool as tool
from ._host import (
    HostDiedError as HostDiedError,
    HostedTool as HostedTool,
    HostKeeper as HostKeeper,
    LeftOut as LeftOut,
    Offer as Offer,
    ToolHost as ToolHost,
    ToolHostError as ToolHostError,
    offered as offered,
)
from ._port import (
    DEFAULT_CLEANUP_SECONDS as DEFAULT_CLEANUP_SECONDS,
    DEFAULT_TOOL_SECONDS as DEFAULT_TOOL_SECONDS,
    INLINE_CHARS as INLINE_CHARS,
    Doubt as Doubt,
    Needs as Needs,
    Operation as Operation,
    PermissionRequired as PermissionRequired,
    Question as Question,
    Readable as Readable,
    Reconciling as Reconciling,
    Tool as Tool,
    ToolContext as ToolContext,
    ToolRefused as ToolRefused,
    ToolResult as ToolResult,
)
from ._received import (
    received_needs as received_needs,
    received_result as received_result,
)
from ._registry import (
    RESERVED_NAMES as RESERVED_NAMES,
    Contribution as Contribution,
    Scope as Scope,
    ScopeKind as ScopeKind,
    ToolRegistry as ToolRegistry,
    ToolSet as ToolSet,
)
from ._threads import BlockingOperation as BlockingOperation
from .builtin import (
    CHANGING_TOOLS as CHANGING_TOOLS,
    FileChange as FileChange,
    FileRestore as FileRestore,
    builtin_tools as builtin_tools,
    changes_of as changes_of,
    file_changes as file_changes,
    kept_output as kept_output,
    plan_restore as plan_restore,
    recall_tools as recall_tools,
    restore_files as restore_files,
)
