"""Sessions are listed, renamed, put away and searched from the command line."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from kit.stores import SETTINGS, message

from greenroom.cli import main
from greenroom.cli._exit import ExitCode
from greenroom.protocol import SessionId
from greenroom.storage import (
    MAX_TITLE,
    Grant,
    bootstrap_facts,
    message_fact,
    open_store,
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sessions that nobody has loaded."""
    monkeypatch.setenv("GREENROOM_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with closing(open_store(tmp_path / "state")) as store:
        member = store.join("test", "", 60.0, now=0.0)
        for n, name in enumerate(("alpha", "beta")):
            grant = store.acquire(member, SessionId(name), now=0.0)
            assert isinstance(grant, Grant)
            facts = bootstrap_facts(f"incarnation {name}", SETTINGS)
            said = message_fact(message(f"hello {name}"))
            store.append(grant, 0, [*facts, said], now=float(n))
        store.leave(member, now=0.0)
        store.index_pending()
    return tmp_path / "state"


def rows(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, object]]:
    assert main(["sessions", *argv, "--json"]) == ExitCode.OK
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def ids(capsys: pytest.CaptureFixture[str], *argv: str) -> list[object]:
    return [row["id"] for row in rows(capsys, *argv)]


def test_sessions_are_listed_with_and_without_the_word(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ids(capsys) == ids(capsys, "list") == ["beta", "alpha"]
    assert ids(capsys, "list", "--limit", "1") == ["beta"]
    assert ids(capsys, "--limit", "1", "list") == ["beta"]
    assert ids(capsys, "--state", str(state / "none"), "list") == []
    (first, _) = rows(capsys)
    assert (first["agent"], first["state"], first["archivedAt"]) == (
        "default",
        "idle",
        None,
    )


def test_an_archived_session_is_listed_apart_and_can_be_taken_back(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sessions", "archive", "al"]) == ExitCode.OK
    assert capsys.readouterr().out == "alpha  A title, archived\n"
    assert ids(capsys) == ["beta"]
    assert ids(capsys, "--archived") == ["alpha"]
    assert main(["sessions", "unarchive", "alpha"]) == ExitCode.OK
    capsys.readouterr()
    assert ids(capsys) == ["beta", "alpha"]
    assert ids(capsys, "--archived") == []


def test_a_renamed_session_is_found_by_its_title(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sessions", "rename", "beta", " Grüße \n an alle "]) == ExitCode.OK
    assert capsys.readouterr().out == "beta  Grüße an alle\n"
    assert ids(capsys, "--search", "GRÜSSE") == ["beta"]
    assert ids(capsys, "--search", "nothing") == []
    assert ids(capsys, "--agent", "default") == ["beta", "alpha"]
    assert ids(capsys, "--agent", "other") == []
    assert main(["sessions", "--search", "nothing"]) == ExitCode.OK
    assert "no such sessions" in capsys.readouterr().out


@pytest.mark.parametrize("title", ["", " \n ", "x" * (MAX_TITLE + 1)])
def test_a_title_has_some_characters(
    state: Path, capsys: pytest.CaptureFixture[str], title: str
) -> None:
    assert main(["sessions", "rename", "beta", title]) == ExitCode.STATE
    assert "a title has 1 to 200 characters" in capsys.readouterr().err


def test_a_session_that_an_engine_has_is_not_changed_and_its_owner_named(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(open_store(state)) as store:
        member = store.join("the other window", "", 1e12, now=0.0)
        store.acquire(member, SessionId("beta"), now=0.0)
        for action in (["archive", "beta"], ["rename", "beta", "x"]):
            assert main(["sessions", *action]) == ExitCode.SESSION_HELD
            assert "the other window" in capsys.readouterr().err
        assert store.sessions()[0].settings.title == "A title"


@pytest.mark.parametrize("argv", [["archive", "nobody"], ["rename", "x", "y"]])
def test_a_session_that_is_not_there_is_said(
    state: Path, capsys: pytest.CaptureFixture[str], argv: list[str]
) -> None:
    assert main(["sessions", *argv]) == ExitCode.USAGE
    assert "there is no session" in capsys.readouterr().err


def test_a_change_makes_no_state_where_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "nothing"
    argv = ["sessions", "archive", "x", "--state", str(folder)]
    assert main(argv) == ExitCode.STATE
    assert not folder.exists()


def test_messages_are_found_by_their_words(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", "HELLO"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "alpha" in out
    assert "    hello beta\n" in out
    assert main(["search", "hello", "--session", "be", "--json"]) == ExitCode.OK
    (hit,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (hit["sessionId"], hit["messageId"], hit["role"]) == ("beta", "m1", "user")
    assert (hit["snippet"], hit["title"]) == ("hello beta", "A title")
    assert main(["search", "unknown"]) == ExitCode.OK
    assert capsys.readouterr().out == "nothing was found\n"
    assert main(["search", "hello", "--session", "nobody"]) == ExitCode.USAGE


def test_a_session_is_written_out_and_read_back_in(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "beta.jsonl"
    assert main(["sessions", "export", "be", str(file)]) == ExitCode.OK
    assert file.stat().st_mode & 0o777 == 0o600
    assert main(["sessions", "export", "beta"]) == ExitCode.OK
    assert capsys.readouterr().out == file.read_text()
    assert main(["sessions", "export", "beta", str(file)]) == ExitCode.USAGE
    assert "can't be written" in capsys.readouterr().err
    other = str(tmp_path / "other")
    argv = ["sessions", "--state", other, "import", str(file)]
    assert main([*argv, "--cwd", str(tmp_path)]) == ExitCode.OK
    assert "(1 entries, 1 left out)" in capsys.readouterr().out
    (row,) = rows(capsys, "--state", other)
    assert (row["title"], row["messages"]) == ("A title", 1)
    assert row["workspace"] == str(tmp_path)
    assert row["id"] != "beta"
    assert main(["search", "--state", other, "hello", "--json"]) == ExitCode.OK
    (hit,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (hit["sessionId"], hit["snippet"]) == (row["id"], "hello beta")


def test_a_torn_file_is_read_as_far_as_it_is_whole_and_the_rest_told(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "torn.jsonl"
    assert main(["sessions", "export", "beta", str(file)]) == ExitCode.OK
    file.write_bytes(file.read_bytes()[:-30])
    assert main(["sessions", "--json", "import", str(file)]) == ExitCode.RUN_FAILED
    captured = capsys.readouterr()
    assert json.loads(captured.out)["title"] == "A title"
    assert "line 4 is no whole entry" in captured.err


def test_a_file_without_a_session_is_said(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "none"
    file.write_text("hello\n")
    for name in (str(file), str(tmp_path / "missing")):
        assert main(["sessions", "import", name]) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert "there is no session in" in err
    assert "can't be read" in err
    assert len(rows(capsys)) == 2


def test_a_sweep_is_told_dry_and_then_done(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stray = state / "scratch" / "nobody"
    stray.mkdir(parents=True)
    (stray / "out.txt").write_text("x" * 4_096)
    assert main(["gc", "--dry-run"]) == ExitCode.OK
    assert f"would remove {stray}\n" in capsys.readouterr().out
    assert stray.exists()
    assert main(["sessions", "archive", "beta"]) == ExitCode.OK
    capsys.readouterr()
    assert main(["gc", "--archived", "--older-than", "0h", "--json"]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["archived"], told["files"]) == (["beta"], [str(stray)])
    assert (told["fileBytes"], told["dryRun"]) == (4_096, False)
    assert not stray.exists()
    assert ids(capsys) == ["alpha"]


def test_a_sweep_waits_for_nobody_and_names_who_is_in_the_folder(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(open_store(state)) as store:
        store.join("the other window", "", 1e12, now=0.0)
        assert main(["gc"]) == ExitCode.STATE
    assert "the other window uses the state folder" in capsys.readouterr().err


@pytest.mark.parametrize("age", ["30", "d", "-1d", "1.5d", "30m", "999999d"])
def test_an_age_has_a_unit(age: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gc", "--older-than", age]) == ExitCode.USAGE
    assert "--older-than" in capsys.readouterr().err
