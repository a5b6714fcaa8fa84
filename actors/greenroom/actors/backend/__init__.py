"""What a session knows of who does its runs, and a run of the world (SES-10, RUN-26).

Values and protocols; nothing here runs anything.
"""

from __future__ import annotations

from ._active import (
    ActiveRun as ActiveRun,
    DeferredJournalError as DeferredJournalError,
    RunNotStartedError as RunNotStartedError,
    RunResult as RunResult,
)
from ._costs import excess_of as excess_of, known_cost as known_cost
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
from ._protocol import (
    Behaviour as Behaviour,
    Reconciled as Reconciled,
    RunBackend as RunBackend,
)
from ._resources import (
    adopt as adopt,
    request_of as request_of,
    with_resources as with_resources,
)
from ._side_requests import SideRequests as SideRequests
from ._tool_facts import append_revisions as append_revisions
