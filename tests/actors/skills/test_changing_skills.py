"""Bindings and packages change whole, and what was cut off is put in order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trio
from kit.rehearsal import open_stage
from kit.skills import offer, package

from greenroom.actors.skills import Packages
from greenroom.actors.skills._service import _bind
from greenroom.protocol import SessionId, SkillError, StorageError, with_binding
from greenroom.storage import Piece, change_skill_state
from greenroom.storage.lifecycle import filter_selection
from greenroom.testing import RehearsalProvider, open_test_engine

SILENT = RehearsalProvider([])


def packages_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name[0] != "."}


async def write(skills: Any, change: Any) -> Any:
    return await skills._writer.submit(Piece(change))


@pytest.mark.contract("SKL-04")
async def test_what_is_taken_away_is_not_selected_any_more_and_keeps_its_extension(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, []) as stage:
        skills, agents = stage.engine.skills, stage.engine.agents
        other = await agents.create("Other")
        await offer(stage, tmp_path, "pdf", "csv")
        await offer(stage, tmp_path, "pdf", agent=other)
        theirs = await stage.engine.create_session(agent=other, workspace=tmp_path)
        await skills.bind("default", "pdf", extension={"level": [3, None]})
        await skills.select(stage.session.id, ["pdf", "csv"])
        await skills.select(theirs.id, ["pdf"])

        async def selected(session: Any) -> tuple[str, ...]:
            return await skills._readers.read(lambda r: r.skill_selection(session.id))

        await skills.bind("default", "pdf", assigned=False)
        assert await selected(stage.session) == ("csv",)
        assert await selected(theirs) == ("pdf",)
        binding = (await skills.state()).agents["default"].bindings["pdf"]
        assert (binding.assigned, binding.extension) == (False, {"level": [3, None]})

        await skills.bind("default", "pdf")
        binding = (await skills.state()).agents["default"].bindings["pdf"]
        assert (binding.assigned, binding.extension) == (True, {"level": [3, None]})
        # Given again is not selected again.
        view = await skills.view("default", stage.session.id)
        assert (set(view.catalogue), view.effective) == ({"csv", "pdf"}, ("csv",))
        with pytest.raises(SkillError, match="bytes"):
            await skills.bind("default", "pdf", extension={"x": "y" * 20_000})


@pytest.mark.contract("SKL-04")
@pytest.mark.parametrize("how", ["transfer", "loaded transfer", "fork"])
async def test_each_way_to_an_agent_yields_what_that_agent_has(
    tmp_path: Path, how: str
) -> None:
    async with open_stage(tmp_path, []) as stage:
        engine, source = stage.engine, stage.session.id
        skills, other = engine.skills, await stage.engine.agents.create("Other")
        await offer(stage, tmp_path, "both", "mine")
        await offer(stage, tmp_path, "both", "theirs", agent=other)
        agent, has = other, {"both", "theirs"}
        await skills.select(source, ["both", "mine"])
        if how != "loaded transfer":
            await stage.session.close()
        if how == "fork":
            # The fork is of the same agent, which has lost one since.
            await write(skills, lambda store: _lose(store, "mine"))
            target = SessionId((await engine.fork_session(source)).id)
            agent, has = "default", {"both"}
        else:
            target = source
            await engine.move_session(source, other)
        view = await skills.view(agent, target)
        assert (set(view.catalogue), view.effective) == (has, ("both",))
        kept = await skills._readers.read(lambda r: r.skill_selection(target))
        assert kept == ("both",)


def _lose(store: Any, name: str) -> None:
    # Past the service, so that what was selected stays behind.
    change_skill_state(
        store, lambda state: with_binding(state, "default", name, assigned=False), 0.0
    )


@pytest.mark.contract("SKL-04")
async def test_a_session_that_is_made_from_another_gets_what_its_own_agent_has(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, []) as stage:
        skills = stage.engine.skills
        other = await stage.engine.agents.create("Other")
        await offer(stage, tmp_path, "both", "mine")
        await offer(stage, tmp_path, "both", "theirs", agent=other)
        source = SessionId(stage.session.id)
        await skills.select(source, ["both", "mine"])
        made = await stage.engine.create_session(agent=other, workspace=tmp_path)
        target = SessionId(made.id)
        await write(
            skills,
            lambda store: filter_selection(store, target, other, None, of=source),
        )
        view = await skills.view(other, target)
        assert (set(view.catalogue), view.effective) == ({"both", "theirs"}, ("both",))
        mine = await skills.view("default", source)
        assert mine.effective == ("both", "mine")


@pytest.mark.contract("SKL-05")
async def test_changes_are_made_one_after_the_other(tmp_path: Path) -> None:
    async with open_stage(tmp_path, []) as stage:
        skills = stage.engine.skills
        inside: list[str] = []
        most = 0

        async def change(name: str) -> None:
            nonlocal most
            inside.append(name)
            most = max(most, len(inside))
            for _ in range(5):
                await trio.lowlevel.checkpoint()
            inside.remove(name)

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(skills._change, lambda n=number: change(str(n)))
        assert most == 1


@pytest.mark.contract("SKL-05")
async def test_another_engine_s_change_is_not_run_into(tmp_path: Path) -> None:
    async with open_stage(tmp_path, []) as stage:
        skills = stage.engine.skills
        source = package(tmp_path / "sources", "pdf")
        async with open_test_engine(tmp_path, SILENT, seed=7) as second:

            async def meanwhile() -> None:
                with pytest.raises(SkillError, match="another program") as refused:
                    await second.skills.add(source)
                assert refused.value.code == "skill_io"

            await skills._change(meanwhile)
            assert await second.skills.add(source) == "pdf"
        assert "pdf" in (await skills.state()).skills


@pytest.mark.contract("SKL-05")
async def test_a_removal_that_was_acknowledged_for_other_agents_is_refused(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, []) as stage:
        skills = stage.engine.skills
        other = await stage.engine.agents.create("Other")
        await offer(stage, tmp_path, "pdf")
        seen = {"default"}
        await skills.bind(other, "pdf")
        for acknowledged in (seen, set(), {"default", other, "third"}):
            with pytest.raises(SkillError, match=other) as refused:
                await skills.remove("pdf", acknowledged)
            assert refused.value.code == "bindings_changed"
        assert packages_in(skills.folder) == {"pdf"}
        with pytest.raises(SkillError, match="no Skill 'nothing'"):
            await skills.remove("nothing", [])

        await skills.select(stage.session.id, ["pdf"])
        await skills.remove("pdf", {"default", other})
        assert packages_in(skills.folder) == set()
        assert not list((skills.folder / ".backup").iterdir())
        state = await skills.state()
        assert (state.skills, state.agents) == ({}, {})
        reader = skills._readers
        assert await reader.read(lambda r: r.skill_selections()) == []


@pytest.mark.contract("SKL-05")
@pytest.mark.parametrize("fault", ["changed meanwhile", "disk"])
async def test_a_fault_behind_the_backup_puts_the_package_back(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_stage(tmp_path, []) as stage:
        skills = stage.engine.skills
        other = await stage.engine.agents.create("Other")
        await offer(stage, tmp_path, "pdf")
        await skills.select(stage.session.id, ["pdf"])
        submit = skills._writer.submit
        moved: list[bool] = []

        async def faulty(piece: Piece) -> Any:
            moved.append(not (skills.folder / "pdf").exists())
            if fault == "disk":
                raise StorageError("the disk is full")
            # Somebody binds it in the moment before the transaction.
            monkeypatch.setattr(type(skills._writer), "submit", real)
            await skills._write(
                lambda store, now: _bind(store, other, "pdf", True, None, now)
            )
            return await submit(piece)

        real = type(skills._writer).submit
        monkeypatch.setattr(
            type(skills._writer), "submit", lambda self, piece: faulty(piece)
        )
        with pytest.raises((SkillError, StorageError)):
            await skills.remove("pdf", {"default"})
        monkeypatch.undo()
        assert moved == [True]
        assert packages_in(skills.folder) == {"pdf"}
        view = await skills.view("default", stage.session.id)
        assert view.effective == ("pdf",)
        assert view.catalogue["pdf"].text.instructions == "Do pdf."


@pytest.mark.contract("SKL-05")
@pytest.mark.parametrize("committed", [False, True])
async def test_a_crash_between_backup_and_commit_is_put_in_order_at_the_start(
    tmp_path: Path, committed: bool
) -> None:
    async with open_stage(tmp_path, []) as stage:
        await offer(stage, tmp_path, "pdf")
        folder = stage.engine.skills.folder
        if committed:
            await stage.engine.skills.remove("pdf", {"default"})
            package(folder, "pdf")
    Packages(folder).back_up("pdf")
    assert packages_in(folder) == set()
    async with open_test_engine(tmp_path, SILENT) as engine:
        assert set(await engine.skills.packages()) == (set() if committed else {"pdf"})
        found = await engine.skills.catalogue("default")
        assert set(found) == (set() if committed else {"pdf"})
        assert not os.listdir(folder / ".backup")


@pytest.mark.contract("SKL-05")
async def test_bindings_of_agents_that_are_gone_or_run_elsewhere_are_removed_first(
    tmp_path: Path,
) -> None:
    async with open_stage(tmp_path, []) as stage:
        agents, skills = stage.engine.agents, stage.engine.skills
        gone, acp = await agents.create("Gone"), await agents.create_acp("A", "true")
        for agent in ("default", gone):
            await offer(stage, tmp_path, "pdf", agent=agent)
        with pytest.raises(SkillError) as refused:
            await skills.bind(acp, "pdf")
        assert refused.value.code == "not_native"

        def plant(store: Any) -> None:
            text = store.app_setting("skills.state")
            for agent in (acp, "nobody"):
                one = f'"{agent}":{{"bindings":{{}}}},"{gone}":'
                text = text.replace(f'"{gone}":', one, 1)
            store.put_app_setting("skills.state", text, now=1.0)
            store.drop_agent(gone)

        await write(skills, plant)
        assert set((await skills.state()).agents) == {"default", gone, acp, "nobody"}
        assert await skills.catalogue(gone) == {}
    async with open_test_engine(tmp_path, SILENT) as engine:
        assert set((await engine.skills.state()).agents) == {"default"}


async def test_what_is_added_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = package(tmp_path / "sources", "pdf", notes="n")
    async with open_test_engine(tmp_path, SILENT) as engine:
        skills = engine.skills

        async def full(self: Any, piece: Piece) -> Any:
            raise StorageError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(type(skills._writer), "submit", full)
            with pytest.raises(StorageError):
                await skills.add(source)
        assert packages_in(skills.folder) == set()
        assert await skills.add(source) == "pdf"
        assert (skills.folder / "pdf" / "notes.txt").read_text() == "n"
        with pytest.raises(SkillError) as refused:
            await skills.add(source)
        assert refused.value.code == "skill_exists"


async def test_a_package_with_links_or_too_much_in_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_test_engine(tmp_path, SILENT) as engine:
        linked = package(tmp_path / "sources", "linked")
        (linked / "out").symlink_to(tmp_path)
        piped = package(tmp_path / "sources", "piped")
        os.mkfifo(piped / "pipe")
        large = package(tmp_path / "sources", "large", notes="n" * 100)
        monkeypatch.setattr("greenroom.actors.skills._packages.MAX_BYTES", 99)
        for source in (linked, piped, large, tmp_path):
            with pytest.raises(SkillError):
                await engine.skills.add(source)
        assert await engine.skills.packages() == {}
        assert (await engine.skills.state()).skills == {}


async def test_a_state_that_can_not_be_read_grants_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_stage(tmp_path, []) as stage:
        await offer(stage, tmp_path, "pdf")
        await write(
            stage.engine.skills,
            lambda store: store.put_app_setting("skills.state", "[]", now=1.0),
        )
    async with open_test_engine(tmp_path, SILENT) as engine:
        with pytest.raises(StorageError, match="can't be read"):
            await engine.skills.catalogue("default")
    assert "not put in order" in caplog.text
