"""``greenroom doctor`` as a user meets it: what it prints, and its exit status."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import apsw
import pytest
import trio

from greenroom.cli import main
from greenroom.engine import open_engine
from greenroom.testing import Halt, RehearsalProvider, Say


@pytest.fixture
def state(tmp_path, monkeypatch) -> Path:
    """A state folder with one session and one finished turn."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    async def one_turn():
        provider = RehearsalProvider([[Say("hello"), Halt()]])
        async with open_engine(state=tmp_path / "state", provider=provider) as engine:
            session = await engine.create_session(workspace=tmp_path)
            await session.prompt("hi")

    trio.run(one_turn)
    return tmp_path / "state"


def doctor(state, *arguments):
    return main(["doctor", "--state", str(state), *arguments])


def damage(state, statement):
    with closing(apsw.Connection(str(state / "greenroom.db"))) as db:
        db.execute(statement)


def test_all_is_well(state, capsys):
    assert doctor(state) == 0
    assert "1 session, " in (said := capsys.readouterr().out)
    assert "all is well" in said


def test_a_problem_is_told_repaired_and_gone(state, capsys):
    damage(state, "UPDATE block SET body = '{'")
    assert doctor(state) == 1
    said = capsys.readouterr().out
    assert "can't be read back" in said
    assert "--repair derives it anew" in said

    assert doctor(state, "--repair") == 0
    said = capsys.readouterr().out
    (backup,) = (state / "backups").iterdir()
    assert str(backup) in said
    assert doctor(state) == 0


def test_json_is_one_object_with_everything(state, capsys):
    damage(state, "UPDATE session_info SET messages = 9")
    assert doctor(state, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert [f["code"] for f in found["findings"]] == ["projection"]
    assert found["repaired"] is None
    assert doctor(state, "--json", "--repair") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["findings"] == []
    assert len(found["repaired"]["rebuilt"]) == 1


def test_a_damaged_file_is_status_5_and_is_not_touched(state, capsys):
    path = state / "greenroom.db"
    with path.open("r+b") as file:
        file.seek(8 * 4096)
        file.write(b"\xee" * 4096 * 4)
    before = path.read_bytes()
    assert doctor(state) == 5
    assert "the file itself is damaged" in capsys.readouterr().out.lower()
    assert doctor(state, "--repair") == 5
    assert "nothing was changed" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_without_a_state_it_says_so_and_makes_nothing(tmp_path, capsys):
    for option in ([], ["--repair"], ["--salvage", str(tmp_path / "out")]):
        assert doctor(tmp_path / "none", *option) == 5
        assert "there is no state" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_salvage_writes_a_line_for_each_entry_to_a_new_file(state, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert doctor(state, "--salvage", str(out)) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert f"wrote {len(lines)} entries of 1 session" in capsys.readouterr().out
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert out.stat().st_mode & 0o077 == 0
    assert doctor(state, "--salvage", str(out)) == 2
    assert len(out.read_text().splitlines()) == len(lines)
