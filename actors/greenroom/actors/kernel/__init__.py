"""The kernel: actors, references, supervision. It knows nothing of agents.

An actor is one mailbox, one exit reason, one message at a time. Stop is a message,
cancel is the kill and has a cause; whoever is cancelled settles itself. All of it runs
on the thread of one trio loop, and no lock exists.
"""

from __future__ import annotations

from ._behaviour import (
    Behaviour as Behaviour,
    ChildSpec as ChildSpec,
    Hosted as Hosted,
    Restart as Restart,
    Strategy as Strategy,
    Supervise as Supervise,
    TaskBehaviour as TaskBehaviour,
)
from ._cleanup import Cleanup as Cleanup
from ._clock import (
    Clock as Clock,
    FixedClock as FixedClock,
    Ids as Ids,
    SeededIds as SeededIds,
    StillClock as StillClock,
    SystemClock as SystemClock,
    SystemIds as SystemIds,
)
from ._context import Context as Context
from ._errors import (
    ActorError as ActorError,
    ActorExitedError as ActorExitedError,
    MailboxFullError as MailboxFullError,
    OperationAbandonedError as OperationAbandonedError,
    OperationCancelledError as OperationCancelledError,
    RestartLimitError as RestartLimitError,
)
from ._kernel import ExitReport as ExitReport, log_exit as log_exit
from ._lanes import (
    Ask as Ask,
    AskAbandoned as AskAbandoned,
    Reply as Reply,
    ReplySlot as ReplySlot,
)
from ._mailbox import Mailbox as Mailbox
from ._messages import (
    Abandoned as Abandoned,
    CancelCause as CancelCause,
    DeadlineReached as DeadlineReached,
    Exited as Exited,
    ExitReason as ExitReason,
    Failed as Failed,
    Normal as Normal,
    Request as Request,
    Started as Started,
    Stop as Stop,
    Stopped as Stopped,
)
from ._reaper import (
    ABANDONED as ABANDONED,
    AbandonedOperation as AbandonedOperation,
    Left as Left,
    Operation as Operation,
    Reaper as Reaper,
    log_abandoned as log_abandoned,
)
from ._ref import Ref as Ref
from ._system import (
    SupervisorHandle as SupervisorHandle,
    System as System,
    open_system as open_system,
)
from ._tree import ActorInfo as ActorInfo
