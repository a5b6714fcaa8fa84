"""What a run is told of Skills, what it may read, and from when on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio.testing
from kit.rehearsal import Probe, calls_of, open_stage, replies, spy_on
from kit.skills import edit, offer, package, system, tools

from greenroom.engine import Grant
from greenroom.protocol import JournalError
from greenroom.testing import Call, Halt, RehearsalProvider, Say, open_test_engine

DONE = [Say("done"), Halt()]


def activate(name: str) -> list[Any]:
    return [Call("activate_skill", {"name": name}), Halt("tool_use")]


@pytest.mark.contract("SKL-01")
async def test_two_agents_share_one_package_and_both_see_it_change(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, []) as stage:
        skills = stage.engine.skills
        other = await stage.engine.agents.create("Other")
        await offer(stage, tmp_path, "pdf")
        await skills.bind(other, "pdf")
        folders = [path.name for path in skills.folder.iterdir() if path.is_dir()]
        assert [name for name in folders if not name.startswith(".")] == ["pdf"]
        mine, theirs = await skills.catalogue("default"), await skills.catalogue(other)
        assert mine == theirs
        assert mine["pdf"].text.instructions == "Do pdf."

        reads = skills._packages.reads
        edit(skills.folder / "pdf", "Do it another way.")
        for agent in ("default", other):
            found = await skills.catalogue(agent)
            assert found["pdf"].text.instructions == "Do it another way."
        assert skills._packages.reads == reads + 1

        state = await skills.state()
        assert state.version == 3
        assert state.skills["pdf"].path == "pdf"
        assert state.skills["pdf"].source == str(tmp_path / "sources" / "pdf")
        third = await stage.engine.agents.create("Third")
        assert await skills.catalogue(third) == {}


@pytest.mark.contract("SKL-02")
async def test_a_session_gets_what_it_selected_of_its_own_agent_s_catalogue(
    tmp_path: Path,
) -> None:
    script = replies(DONE, DONE)
    async with open_stage(tmp_path, script) as stage:
        skills = stage.engine.skills
        await offer(stage, tmp_path, "builtin-only")
        other = await stage.engine.agents.create("Other")
        await offer(stage, tmp_path, "mine", "spare", agent=other)
        session = await stage.engine.create_session(agent=other, workspace=tmp_path)

        chosen = await skills.select(session.id, ["builtin-only", "mine", "nowhere"])
        assert chosen == ("mine",)
        # Even were the selection made by somebody else, it grants nothing.
        await skills._write(
            lambda store, _: store.put_skill_selection(
                session.id, ["builtin-only", "mine"]
            )
        )
        await session.prompt("go")
        (request,) = stage.provider.requests
        assert "builtin-only" not in system(request)
        assert "# Skill in use: mine" in system(request)
        assert "Do mine." in system(request)
        assert "- spare: About spare." in system(request)
        assert "Do spare." not in system(request)
        assert tools(request) == ["activate_skill"]

        # An agent whose own list excludes it, and one that can't be read: nothing.
        await stage.engine.agents.update(other, {"enabledSkillNames": ["spare"]})
        view = await skills.view(other, session.id)
        assert (list(view.catalogue), view.effective) == (["spare"], ())


@pytest.mark.contract("SKL-02")
async def test_only_the_folders_of_skills_in_use_can_be_read(tmp_path: Path) -> None:
    def read(name: str, folder: Path) -> list[Any]:
        path = str(folder / name / "SKILL.md")
        return [Call("read", {"path": path}), Halt("tool_use")]

    folder = tmp_path / "state" / "skills"
    script = replies(
        read("used", folder),
        read("spare", folder),
        read("foreign", folder),
        activate("foreign"),
        activate("spare"),
        read("spare", folder),
        DONE,
        read("spare", folder),
        DONE,
    )
    async with open_stage(tmp_path, script, builtin=True) as stage:
        skills = stage.engine.skills
        await offer(stage, tmp_path, "used", "spare")
        other = await stage.engine.agents.create("Other")
        await offer(stage, tmp_path, "foreign", agent=other)
        await skills.select(stage.session.id, ["used", "foreign"])
        first = await stage.session.prompt("go")
        second = await stage.session.prompt("again")
    calls = calls_of(first.message)
    assert [call.status for call in calls] == [
        "success",
        "error",
        "error",
        "error",
        "success",
        "success",
    ]
    assert "Do used." in (calls[0].response or "")
    assert "leads out of the workspace" in (calls[1].response or "")
    assert "there is no Skill 'foreign' here" in (calls[3].response or "")
    (call,) = calls_of(second.message)
    assert call.status == "error"
    assert "leads out of the workspace" in (call.response or "")


@pytest.mark.contract("SKL-03")
async def test_a_run_keeps_the_skills_it_began_with(tmp_path: Path) -> None:
    gate = trio.Event()
    probe = Probe(gate=gate)
    ask = [Call("probe", {"n": 1}), Halt("tool_use")]
    async with open_stage(tmp_path, replies(ask, DONE, DONE), probe) as stage:
        await offer(stage, tmp_path, "used", "spare")
        await stage.engine.skills.select(stage.session.id, ["used"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await probe.reached.wait()
            edit(stage.engine.skills.folder / "used", "Something else.")
            for name in ("used", "spare"):
                await stage.engine.skills.bind("default", name, assigned=False)
            gate.set()
        await stage.session.prompt("again")
        before, after, later = stage.provider.requests
    assert system(before) == system(after) != ""
    assert tools(before) == tools(after) == ["activate_skill", "probe"]
    assert system(later) == ""
    assert tools(later) == ["probe"]


@pytest.mark.contract("SKL-03")
async def test_what_a_call_puts_to_use_is_in_use_in_the_next_round_of_its_run(
    tmp_path: Path,
) -> None:
    script = replies(activate("pdf"), DONE, DONE)
    async with open_stage(tmp_path, script) as stage:
        await offer(stage, tmp_path, "pdf")
        await stage.session.prompt("go")
        await stage.session.prompt("again")
        before, after, later = stage.provider.requests
    said = ["Do pdf." in system(request) for request in (before, after, later)]
    assert said == [False, True, False]


@pytest.mark.contract("SKL-03")
async def test_what_a_call_puts_to_use_lasts_from_the_next_round_to_the_turn_s_end(
    tmp_path: Path,
) -> None:
    both = [
        Call("activate_skill", {"name": "pdf"}),
        Call("probe", {"n": 1}),
        Halt("tool_use"),
    ]
    asks = Probe(permission="do it")
    script = replies(both, DONE, DONE)
    async with open_stage(tmp_path, script, asks) as stage:
        await offer(stage, tmp_path, "pdf")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await trio.testing.wait_all_tasks_blocked()
            (waits,) = await stage.session.interactions()
            await stage.session.answer(waits.id, Grant())
        await stage.session.prompt("again")
        before, after, later = stage.provider.requests
    assert "Do pdf." not in system(before)
    assert "Do pdf." in system(after)
    assert system(later) == system(before)
    assert "- pdf: About pdf." in system(later)


async def test_what_is_put_to_use_outlives_a_restart_in_a_pause(tmp_path: Path) -> None:
    both = [
        Call("activate_skill", {"name": "pdf"}),
        Call("probe", {"n": 1}),
        Halt("tool_use"),
    ]
    script = replies(both, DONE)
    asks = Probe(permission="do it")
    async with open_stage(tmp_path, script, asks) as stage:
        await offer(stage, tmp_path, "pdf")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        session_id = stage.session.id
    async with open_stage(
        tmp_path, replies(DONE), Probe(permission="do it"), session_id=session_id
    ) as stage:
        (waits,) = await stage.session.interactions()
        await stage.session.answer(waits.id, Grant())
        await trio.testing.wait_all_tasks_blocked()
        assert "Do pdf." in system(stage.provider.requests[0])


async def test_what_was_put_to_use_and_taken_away_in_a_pause_is_gone(
    tmp_path: Path,
) -> None:
    both = [
        Call("activate_skill", {"name": "pdf"}),
        Call("probe", {"n": 1}),
        Halt("tool_use"),
    ]
    asks = Probe(permission="do it")
    async with open_stage(tmp_path, replies(both, DONE), asks) as stage:
        await offer(stage, tmp_path, "pdf", "csv")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.session.prompt, "go")
            await trio.testing.wait_all_tasks_blocked()
            await stage.engine.skills.bind("default", "pdf", assigned=False)
            (waits,) = await stage.session.interactions()
            await stage.session.answer(waits.id, Grant())
        request = stage.provider.requests[1]
    assert "pdf" not in system(request)
    assert "- csv: About csv." in system(request)


@pytest.mark.contract("SKL-03")
async def test_without_a_durable_outcome_nothing_is_put_to_use(tmp_path: Path) -> None:
    def fail(what: str) -> Exception | None:
        return JournalError("disk", "full") if what == "ToolOutcome" else None

    async with open_stage(tmp_path, replies(activate("pdf"), DONE)) as stage:
        await offer(stage, tmp_path, "pdf")
        spy = spy_on(stage)
        spy.fail = fail
        turn = await stage.session.prompt("go")
        assert turn.outcome == "error"
        assert len(stage.provider.requests) == 1


async def test_a_disabled_tool_puts_nothing_to_use(tmp_path: Path) -> None:
    async with open_stage(tmp_path, replies(activate("pdf"), DONE)) as stage:
        await offer(stage, tmp_path, "pdf")
        await stage.session.configure(disabled_tools=("activate_skill",))
        await stage.session.prompt("go")
        first, second = stage.provider.requests
    assert tools(first) == []
    assert "Do pdf." not in system(second)


async def test_packages_that_can_not_be_used_are_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state" / "skills"
    good = package(folder, "good")
    package(folder, "odd").joinpath("SKILL.md").write_text("no front matter")
    (folder / "linked").symlink_to(good)
    (folder / "Not-A-Name").mkdir()
    linked = package(folder, "inside")
    (linked / "SKILL.md").unlink()
    (linked / "SKILL.md").symlink_to(good / "SKILL.md")
    async with open_test_engine(tmp_path, RehearsalProvider([])) as engine:
        assert list(await engine.skills.packages()) == ["good"]
        # What lay in the folder is managed from the start on, and grants nothing.
        assert list((await engine.skills.state()).skills) == ["good"]
        assert await engine.skills.catalogue("default") == {}
    assert "Skill odd can't be used" in caplog.text


async def test_an_engine_without_a_folder_has_no_skills() -> None:
    async with open_test_engine(None, RehearsalProvider([])) as engine:
        assert await engine.skills.packages() == {}
