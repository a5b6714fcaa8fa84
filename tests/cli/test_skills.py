"""``greenroom skills`` and ``greenroom memory``, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit.skills import package

from greenroom.cli import main
from greenroom.cli._exit import ExitCode
from greenroom.protocol import Chunk, IngestMark, SessionId
from greenroom.storage import open_store


@pytest.fixture
def type_in(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GREENROOM_STATE", str(tmp_path / "state"))

    def run(*argv: str) -> tuple[int, str, str]:
        status = main(list(argv))
        out, err = capsys.readouterr()
        return status, out, err

    return run


def skills(type_in: Any) -> list[dict[str, Any]]:
    status, out, _ = type_in("skills", "list", "--json")
    assert status == ExitCode.OK
    return [json.loads(line) for line in out.splitlines()]


def test_a_new_folder_has_no_skills_and_is_not_made_by_looking(
    type_in: Any, tmp_path: Path
) -> None:
    assert type_in("skills")[0] == ExitCode.OK
    assert skills(type_in) == []
    assert not (tmp_path / "state").exists()


def test_a_skill_is_added_given_taken_and_removed(type_in: Any, tmp_path: Path) -> None:
    folder = str(package(tmp_path, "pdf"))
    assert type_in("skills", "add", folder)[:2] == (ExitCode.OK, "pdf\n")
    (shown,) = skills(type_in)
    assert (shown["name"], shown["agents"], shown["usable"]) == ("pdf", [], True)
    assert type_in("skills", "bind", "default", "pdf")[0] == ExitCode.OK
    assert "About pdf.  (used by default)" in type_in("skills")[1]

    status, _, err = type_in("skills", "remove", "pdf")
    assert status != ExitCode.OK
    assert "not those that were named: default" in err
    assert type_in("skills", "unbind", "default", "pdf")[0] == ExitCode.OK
    assert type_in("skills", "remove", "pdf")[0] == ExitCode.OK
    assert skills(type_in) == []


def test_what_can_not_be_done_is_said(type_in: Any, tmp_path: Path) -> None:
    for argv, words in (
        (("bind", "default", "nothing"), "there is no Skill 'nothing'"),
        (("add", str(tmp_path)), "SKILL.md"),
        (("select", "nowhere", "pdf"), "there is no session 'nowhere'"),
    ):
        status, _, err = type_in("skills", *argv)
        assert status not in (ExitCode.OK, ExitCode.USAGE), argv
        assert words in err


def test_what_a_file_says_is_shown_as_no_terminal_would_obey(
    type_in: Any, tmp_path: Path
) -> None:
    folder = package(tmp_path, "odd")
    text = "---\nname: odd\ndescription: \x1b[2Jclear\n---\n"
    (folder / "SKILL.md").write_text(text)
    type_in("skills", "add", str(folder))
    assert "\x1b" not in type_in("skills")[1]


def test_memories_are_listed_and_forgotten(type_in: Any, tmp_path: Path) -> None:
    assert type_in("agents", "set", "default", '{"memoryEnabled":true}')[0] == 0
    store = open_store(tmp_path / "state")
    chunks = [Chunk(2, "user: one"), Chunk(4, "user: two")]
    session = SessionId("12345678-session")
    store.keep_recollections("default", session, IngestMark(), 4, chunks, now=1.0)
    store.close()

    listed = type_in("memory", "list", "default")[1].splitlines()
    assert [line.split()[-1] for line in listed] == ["two", "one"]
    assert type_in("memory")[1].splitlines() == listed
    newest = json.loads(type_in("memory", "--json")[1].splitlines()[0])
    assert (newest["text"], newest["sessionId"]) == ("user: two", session)
    assert type_in("memory", "forget", "default", str(newest["id"]))[1] == "default 1\n"
    assert type_in("memory", "forget", "default")[1] == "default 1\n"
    assert "remembers nothing" in type_in("memory", "list")[1]
    assert type_in("memory", "list", "nobody")[0] != ExitCode.OK
    assert type_in("memory", "forget", "nobody")[0] != ExitCode.OK
