"""The pair of a native agent and an agent's process that plays its model (AGT-03)."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from kit.attempts import attempts_of
from kit.rehearsal import Probe, open_stage, replies

from greenroom.actors.context._views import RequestViews
from greenroom.engine import SlidingWindow
from greenroom.testing import Call, Fail, Halt, RehearsalProvider, Say, Use

ASK = [Call("probe", {"n": 1}), Use(5_000, 1), Halt("tool_use")]
DONE = [Say("done"), Use(5_000, 1), Halt()]
BUSY = [Fail("busy", status=503, headers={"retry-after-ms": "1"})]


@attrs.define(eq=False)
class Count:
    """How often the preflight was called."""

    calls: int = 0


@pytest.fixture
def preflights(monkeypatch: pytest.MonkeyPatch) -> Count:
    count, inner = Count(), RequestViews.preflight

    def preflight(views: RequestViews, request: Any) -> Any:
        count.calls += 1
        return inner(views, request)

    monkeypatch.setattr(RequestViews, "preflight", preflight)
    return count


def of(provider_id: str, *script: Any) -> RehearsalProvider:
    return RehearsalProvider(replies(*script), id=provider_id)


@pytest.mark.contract("AGT-03", "CTX-07")
@pytest.mark.parametrize("provider_id", ["acp", "other"])
async def test_the_loop_and_the_tools_run_and_no_budget_is_asked(
    tmp_path, autojump_clock, preflights, provider_id
):
    probe = Probe()
    async with open_stage(
        tmp_path,
        [],
        probe,
        provider=of(provider_id, ASK, DONE),
        compaction=SlidingWindow(),
    ) as stage:
        # So small that each request would be too large.
        await stage.session.configure(context_length=400)
        turn = await stage.session.prompt("word " * 30)
        bypassed = provider_id == "acp"
        if bypassed:
            assert (turn.outcome, turn.text) == ("completed", "done")
            assert len(probe.calls) == 1
            assert [r.max_output_tokens for r in stage.provider.requests] == [None] * 2
        assert (preflights.calls == 0) == bypassed
        names = stage.names()
        assert "execution/run_started" in names
        assert names.count("view/assembled") == len(stage.provider.requests)


@pytest.mark.contract("AGT-03")
@pytest.mark.parametrize(("provider_id", "sent"), [("acp", 1), ("other", 2)])
async def test_a_passing_failure_gives_one_attempt(
    tmp_path, autojump_clock, provider_id, sent
):
    provider = of(provider_id, BUSY, DONE)
    assert provider.replayable
    async with open_stage(tmp_path, [], provider=provider) as stage:
        turn = await stage.session.prompt("go")
        assert turn.outcome == ("error" if sent == 1 else "completed")
        assert len(provider.requests) == len(attempts_of(stage)) == sent
