"""Runs: one execution each, from its start fact to its one terminal."""

from __future__ import annotations

from ._loop import (
    ActiveRun as ActiveRun,
    RunNotStartedError as RunNotStartedError,
    deferred_behaviour as deferred_behaviour,
    loop_behaviour as loop_behaviour,
)
from ._ports import (
    Record as Record,
    RunPlan as RunPlan,
    RunPorts as RunPorts,
    Watchers as Watchers,
)
from ._settlement import (
    CommittedProjectionError as CommittedProjectionError,
    RunResult as RunResult,
)
