"""Runs: one execution each, from its start fact to its one terminal."""

from __future__ import annotations

from ._deferred import deferred_behaviour as deferred_behaviour
from ._life import (
    ActiveRun as ActiveRun,
    DeferredJournalError as DeferredJournalError,
    RunNotStartedError as RunNotStartedError,
)
from ._loop import loop_behaviour as loop_behaviour
from ._ports import (
    ContextBudget as ContextBudget,
    Contribute as Contribute,
    Prepare as Prepare,
    Prepared as Prepared,
    Record as Record,
    Recovery as Recovery,
    Refresh as Refresh,
    Refreshed as Refreshed,
    Reviewer as Reviewer,
    RunPlan as RunPlan,
    RunPorts as RunPorts,
    Views as Views,
    Watchers as Watchers,
)
from ._reconciliation import reconcile as reconcile
from ._settlement import (
    CommittedProjectionError as CommittedProjectionError,
    RunResult as RunResult,
)
from ._tool_facts import append_revisions as append_revisions
