"""For tests of what is built on greenroom: no model, no network, no real time.

    provider = RehearsalProvider([[Call("greet", {"name": "Ada"}), Halt("tool_use")],
                                  [Say("done"), Halt()]])
    greet = RecordingTool("greet", result="hello")
    async with open_test_engine(tmp_path, provider, greet) as engine:
        session = await engine.create_session(workspace=tmp_path)
        assert (await session.prompt("go")).text == "done"
    assert greet.calls == [{"name": "Ada"}]

Everything waits on trio's clock, so under `trio.testing.MockClock` a test owns it all.
"""

from __future__ import annotations

from greenroom.actors.kernel import (
    FixedClock as FixedClock,
    SeededIds as SeededIds,
    StillClock as StillClock,
)
from greenroom.actors.providers import (
    Call as Call,
    Cue as Cue,
    End as End,
    Fail as Fail,
    Halt as Halt,
    Hang as Hang,
    Pause as Pause,
    Raise as Raise,
    RehearsalProvider as RehearsalProvider,
    Reply as Reply,
    Say as Say,
    Script as Script,
    ScriptError as ScriptError,
    Think as Think,
    Use as Use,
    load_script as load_script,
)

from ._crash_fs import (
    CrashDisk as CrashDisk,
    CrashKind as CrashKind,
    crash_disk as crash_disk,
)
from ._engine import open_test_engine as open_test_engine
from ._evals_report import (
    Aggregate as Aggregate,
    Persisted as Persisted,
    Report as Report,
    ScenarioResult as ScenarioResult,
    Spent as Spent,
    report_of as report_of,
)
from ._evals_run import evaluate as evaluate, evaluate_scenario as evaluate_scenario
from ._evals_scenario import (
    CallBudget as CallBudget,
    Expectation as Expectation,
    ExpectedUsage as ExpectedUsage,
    Scenario as Scenario,
    ScenarioError as ScenarioError,
    ScriptedTool as ScriptedTool,
    UserAnswer as UserAnswer,
    load_scenarios as load_scenarios,
)
from ._evals_standard import STANDARD_SCENARIOS as STANDARD_SCENARIOS
from ._recording import RecordingTool as RecordingTool
