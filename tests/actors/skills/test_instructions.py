"""The instructions of requests: stable in a turn, and what the workspace says."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import attrs
import msgspec
import pytest
import trio
from kit.rehearsal import Probe, Stage, open_stage, replies
from kit.run_ports import change_run_ports
from kit.skills import offer, system
from trio.testing import MockClock

from greenroom.actors.skills import Environment, InlineWork, Resources
from greenroom.actors.skills._environment import MAX_INSTRUCTIONS
from greenroom.protocol import SystemMessage
from greenroom.testing import Call, Halt, Say

T = TypeVar("T")
DONE = [Say("done"), Halt()]


@attrs.define(eq=False)
class SlowWork:
    """A disk that takes its time."""

    seconds: float
    asked: list[float] = attrs.field(factory=list[float])

    async def run(self, fn: Callable[[], T], *, changes: bool = False) -> T:
        self.asked.append(trio.current_time())
        await trio.sleep(self.seconds)
        return fn()


def use(stage: Stage, work: Any) -> None:
    resources = Resources(stage.engine.skills, Environment(work))
    change_run_ports(stage, prepare=resources)


@pytest.mark.contract("SKL-09")
async def test_ten_rounds_of_a_turn_have_the_same_instructions(tmp_path: Path) -> None:
    rounds = [[Call("probe", {"n": n}), Halt("tool_use")] for n in range(9)]
    script = replies(*rounds, DONE)
    async with open_stage(
        tmp_path, script, Probe(), system_prompt="Be brief."
    ) as stage:
        (tmp_path / "workspace" / "AGENTS.md").write_text("Use tabs.")
        await offer(stage, tmp_path, "pdf", "csv")
        await stage.engine.skills.select(stage.session.id, ["pdf"])
        await stage.session.prompt("go")
        requests = stage.provider.requests
    assert len(requests) == 10
    heads = {msgspec.json.encode(request.messages[0]) for request in requests}
    assert len(heads) == 1
    text = system(requests[0])
    for part in ("Be brief.", "Use tabs.", "Do pdf.", "- csv: About csv.", "# Tools"):
        assert part in text
    for before, after in pairwise(requests):
        assert after.messages[: len(before.messages)] == before.messages
        systems = [m for m in after.messages if isinstance(m, SystemMessage)]
        assert len(systems) == 1


@pytest.mark.contract("SKL-09")
async def test_a_file_that_is_read_slowly_is_left_out(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_stage(tmp_path, replies(DONE, DONE)) as stage:
        (tmp_path / "workspace" / "AGENTS.md").write_text("Use tabs.")
        use(stage, SlowWork(0.25))
        began = trio.current_time()
        await stage.session.prompt("go")
        assert trio.current_time() - began == pytest.approx(0.2)
        assert system(stage.provider.requests[0]) == ""
        use(stage, SlowWork(0.15))
        await stage.session.prompt("go")
        assert "Use tabs." in system(stage.provider.requests[1])
    assert "took too long" in caplog.text


@pytest.mark.contract("SKL-09")
async def test_a_change_of_the_file_shows_after_30_seconds(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    file = tmp_path / "workspace" / "AGENTS.md"
    async with open_stage(tmp_path, replies(DONE, DONE, DONE)) as stage:
        work = SlowWork(0.0)
        use(stage, work)
        file.write_text("Use tabs.")
        await stage.session.prompt("go")
        file.write_text("Use spaces.")
        await trio.sleep(29.9)
        await stage.session.prompt("go")
        assert len(work.asked) == 1
        await trio.sleep(0.2)
        await stage.session.prompt("go")
    texts = [system(request) for request in stage.provider.requests]
    assert ["Use tabs." in text for text in texts] == [True, True, False]
    assert "Use spaces." in texts[2]


async def test_only_a_regular_file_of_the_workspace_is_read_and_not_all_of_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    environment = Environment(InlineWork())
    places = [tmp_path / name for name in "abcd"]
    for place in places:
        place.mkdir()
    linked, piped, large, empty = places
    (tmp_path / "secret").write_text("secret")
    (linked / "AGENTS.md").symlink_to(tmp_path / "secret")
    os.mkfifo(piped / "AGENTS.md")
    (large / "AGENTS.md").write_text("é" * (MAX_INSTRUCTIONS + 1))
    found = [await environment.instructions(place) for place in places]
    assert found == ["", "", "é" * MAX_INSTRUCTIONS, ""]
    assert empty in environment._read
