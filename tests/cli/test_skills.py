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
    assert status == ExitCode.USAGE
    assert "not those that were named: default" in err
    assert type_in("skills", "unbind", "default", "pdf")[0] == ExitCode.OK
    assert type_in("skills", "remove", "pdf")[0] == ExitCode.OK
    assert skills(type_in) == []


def test_what_a_session_uses_is_selected_and_left_again(
    type_in: Any, tmp_path: Path
) -> None:
    type_in("skills", "add", str(package(tmp_path, "pdf")))
    type_in("skills", "bind", "default", "pdf")
    type_in("run", "hello", "--cwd", str(tmp_path))
    session = json.loads(type_in("sessions", "--json")[1])["id"]
    select = "skills", "select", session

    assert type_in(*select, "pdf") == (ExitCode.OK, f"{session} pdf\n", "")
    status, out, err = type_in(*select, "pdf", "fdp")
    assert (status, out) == (ExitCode.OK, f"{session} pdf\n")
    assert err == "greenroom: the session's agent does not have: fdp\n"
    assert type_in(*select) == (ExitCode.OK, f"{session} nothing\n", "")


def test_what_can_not_be_done_is_said(type_in: Any, tmp_path: Path) -> None:
    for argv, expected, words in (
        (("bind", "default", "none"), ExitCode.USAGE, "there is no Skill 'none'"),
        (("add", str(tmp_path)), ExitCode.RUN_FAILED, "SKILL.md"),
        (("select", "none", "pdf"), ExitCode.USAGE, "there is no session 'none'"),
    ):
        status, _, err = type_in("skills", *argv)
        assert status == expected, argv
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
