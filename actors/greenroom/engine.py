"""The front door for those who embed greenroom.

    async with open_engine(provider=my_provider) as engine:
        session = await engine.create_session(workspace=Path.cwd())
        turn = await session.prompt("What is in README.md?")
        print(turn.text)

An engine owns a state folder's member, its writer, and the tree of actors. Several
engines may use one folder; each session has one owner at a time. Everything here runs
in the task that opened the engine, and its children; nothing is a global.
"""

from __future__ import annotations

from greenroom.actors.agents import (
    AgentManager as AgentManager,
    NoBackendError as NoBackendError,
    SessionDefaults as SessionDefaults,
)
from greenroom.actors.context import (
    SlidingWindow as SlidingWindow,
    Strategy as Strategy,
    Window as Window,
    Windows as Windows,
)
from greenroom.actors.engine import (
    Engine as Engine,
    default_state as default_state,
    open_engine as open_engine,
)
from greenroom.actors.gates import (
    BeingDeletedError as BeingDeletedError,
    StillUsedError as StillUsedError,
)
from greenroom.actors.hooks import (
    CommandHook as CommandHook,
    Hook as Hook,
    Webhook as Webhook,
)
from greenroom.actors.lifecycle import (
    DeletionError as DeletionError,
    Impact as Impact,
    MessageNotFoundError as MessageNotFoundError,
    Moved as Moved,
    MoveError as MoveError,
    RoundNotFoundError as RoundNotFoundError,
    TransferRefusedError as TransferRefusedError,
)
from greenroom.actors.logs import (
    JsonLines as JsonLines,
)
from greenroom.actors.maintenance import (
    MaintenanceError as MaintenanceError,
    MaintenanceFailedError as MaintenanceFailedError,
    MaintenanceRefusedError as MaintenanceRefusedError,
)
from greenroom.actors.memory import (
    MemoryPort as MemoryPort,
)
from greenroom.actors.observers import (
    Observer as Observer,
    Telemetry as Telemetry,
)
from greenroom.actors.opening import (
    WorkspaceError as WorkspaceError,
)
from greenroom.actors.prices import (
    Prices as Prices,
)
from greenroom.actors.providers import (
    Provider as Provider,
    RateLimit as RateLimit,
)
from greenroom.actors.sessions import (
    AcceptedInput as AcceptedInput,
    InputBlockedError as InputBlockedError,
    SessionClosedError as SessionClosedError,
    SessionHandle as SessionHandle,
    SessionHeldError as SessionHeldError,
    SessionNotFoundError as SessionNotFoundError,
    SlowWatcherError as SlowWatcherError,
    TurnFailedError as TurnFailedError,
    TurnRefusedError as TurnRefusedError,
    TurnResult as TurnResult,
    UnknownCursorError as UnknownCursorError,
)
from greenroom.actors.skills import (
    Skills as Skills,
)
from greenroom.actors.tools import (
    Doubt as Doubt,
    Needs as Needs,
    Operation as Operation,
    PermissionRequired as PermissionRequired,
    Question as Question,
    Tool as Tool,
    ToolContext as ToolContext,
    ToolRefused as ToolRefused,
    ToolResult as ToolResult,
    tool as tool,
)
from greenroom.protocol import (
    Budget as Budget,
    Deny as Deny,
    Grant as Grant,
    InputRefusedError as InputRefusedError,
    Other as Other,
    Price as Price,
    Reply as Reply,
)
from greenroom.storage import (
    MemoryStore as MemoryStore,
)
