"""Between a settled batch and the next request, tools and instructions may change."""

from __future__ import annotations

import msgspec
import pytest
from kit.rehearsal import Probe, open_stage, replies
from kit.run_ports import change_run_ports

from greenroom.actors.backend import Refreshed
from greenroom.actors.tools import ToolRegistry
from greenroom.protocol import SystemMessage
from greenroom.testing import Call, Halt, Say

ASK = [Say("I look."), Call("probe", {"n": 1}), Halt("tool_use")]
NEW = [Call("fresh", {"n": 2}), Halt("tool_use")]
DONE = [Say("done"), Halt()]


def tools(*names):
    registry = ToolRegistry()
    registry.contribute(*[Probe(name=name) for name in names])
    return registry.snapshot()


def names(request):
    return [definition.name for definition in request.tools]


def bytes_of(messages):
    return [msgspec.json.encode(message) for message in messages]


@pytest.mark.contract("TOL-23")
@pytest.mark.parametrize("before", ["be brief", ""])
@pytest.mark.parametrize("after", ["be brief, and use the skill", ""])
async def test_a_refresh_changes_the_tool_list_and_the_first_message_alone(
    tmp_path, before, after
):
    fresh = [Refreshed(tools("fresh"), after), None]

    async def refresh():
        return fresh.pop(0)

    async with open_stage(
        tmp_path, replies(ASK, NEW, DONE), Probe(), system_prompt=before
    ) as stage:
        change_run_ports(stage, refresh=refresh)
        turn = await stage.session.prompt("go")
        assert turn.text.endswith("done")
        first, second, third = stage.provider.requests
        assert names(first) == ["probe"]
        # Nothing came of the second refresh, so what it brought before stays.
        assert names(second) == names(third) == ["fresh"]
        systems = [
            [m.text for m in r.messages if isinstance(m, SystemMessage)]
            for r in (first, second, third)
        ]
        assert systems == [[before] * bool(before), *[[after] * bool(after)] * 2]
        requests = zip((first, second, third), systems, strict=True)
        said = [request.messages[bool(system) :] for request, system in requests]
        assert bytes_of(said[1][: len(said[0])]) == bytes_of(said[0])
        assert bytes_of(said[2][: len(said[1])]) == bytes_of(said[1])
        # What the refresh brought can be run.
        assert "result of fresh 2" in repr(third.messages)


@pytest.mark.contract("TOL-23")
async def test_a_refresh_that_fails_is_a_warning_and_the_old_set_stays(
    tmp_path, caplog
):
    async def refresh():
        raise ValueError("the skill is broken")

    again = [Call("probe", {"n": 2}), Halt("tool_use")]
    async with open_stage(
        tmp_path, replies(ASK, again, DONE), Probe(), system_prompt="be brief"
    ) as stage:
        change_run_ports(stage, refresh=refresh)
        turn = await stage.session.prompt("go")
        assert turn.stop_reason == "complete"
        assert [names(r) for r in stage.provider.requests] == [["probe"]] * 3
        assert {r.messages[0] for r in stage.provider.requests} == {
            SystemMessage("be brief")
        }
    warnings = [r for r in caplog.records if "not refreshed" in r.message]
    assert len(warnings) == 2
    assert "the skill is broken" in warnings[0].getMessage()


async def test_nothing_is_refreshed_when_the_run_ends_or_has_no_batch(tmp_path):
    calls = []

    async def refresh():
        calls.append(1)

    cut = [Call("probe", {"n": 1}), Halt("max_tokens")]
    async with open_stage(
        tmp_path, replies(DONE, cut, DONE, ASK, DONE), Probe()
    ) as stage:
        change_run_ports(stage, refresh=refresh)
        # A batch that was refused has settled nothing.
        await stage.session.prompt("go")
        await stage.session.prompt("go")
        assert len(stage.provider.requests) == 3
        assert calls == []
        await stage.session.prompt("go")
        assert calls == [1]
