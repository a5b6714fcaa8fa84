"""``greenroom agents``, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kit.legacy import legacy_file

from greenroom.cli import main
from greenroom.cli._agents import with_agent_model
from greenroom.cli._config import load_config
from greenroom.cli._exit import ExitCode

SLOT = '{"subagentEnabled":true,"subagents":[{"id":"s","target":"self"}]}'


@pytest.fixture
def type_in(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GREENROOM_STATE", str(tmp_path / "state"))

    def run(*argv: str) -> tuple[int, str, str]:
        status = main(["agents", *argv])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def agents(type_in: Any) -> dict[str, dict[str, Any]]:
    _, out, _ = type_in("list", "--json")
    listed = [json.loads(line) for line in out.splitlines()]
    return {agent["id"]: agent for agent in listed}


def made(type_in: Any, *argv: str) -> str:
    status, out, err = type_in("add", *argv, "--json")
    assert status == ExitCode.OK, err
    return json.loads(out)["id"]


def test_a_new_folder_has_no_agents_and_is_not_made_by_looking(
    type_in: Any, tmp_path: Path
) -> None:
    assert type_in("list")[0] == ExitCode.OK
    assert type_in("--json") == (ExitCode.OK, "", "")
    assert type_in("show", "default")[0] == ExitCode.STATE
    assert not (tmp_path / "state").exists()


def test_agents_are_made_changed_reset_and_removed(type_in: Any) -> None:
    writer = made(type_in, "Writer", "--config", '{"systemPrompt":"w"}')
    assert agents(type_in).keys() == {"default", writer}
    assert type_in("set", writer, SLOT, "--name", "Author")[0] == ExitCode.OK
    assert type_in("set", writer, '{"systemPrompt":null}')[0] == ExitCode.OK
    agent = agents(type_in)[writer]
    assert (agent["name"], agent["config"]) == ("Author", json.loads(SLOT))
    assert type_in("reset", writer)[0] == ExitCode.OK
    assert agents(type_in)[writer]["config"] is None
    assert type_in("remove", writer)[0] == ExitCode.OK
    assert agents(type_in).keys() == {"default"}


def test_what_is_in_force_is_shown(type_in: Any) -> None:
    type_in("set", "default", '{"autoCompactionTriggerThreshold":33}')
    status, out, _ = type_in("show", "default", "--json")
    assert status == ExitCode.OK
    shown = json.loads(out)
    assert shown["config"] == {"autoCompactionTriggerThreshold": 33}
    assert shown["inForce"]["autoCompactionTriggerThreshold"] == 35
    assert "inForce" in type_in("show", "default")[1]


def test_an_agent_with_a_process_is_kept_with_its_command(type_in: Any) -> None:
    made_id = made(
        type_in, "X", "--acp", " cmd ", "--arg=-v", "--env", "K=a=b", "--env", "E="
    )
    assert agents(type_in)[made_id]["config"] == {
        "command": " cmd ",
        "args": ["-v"],
        "env": {"K": "a=b", "E": ""},
    }
    assert "inForce" not in json.loads(type_in("show", made_id, "--json")[1])


def test_the_agent_of_sessions_that_name_none_is_chosen(
    type_in: Any, tmp_path: Path, capsys: Any
) -> None:
    chosen = made(type_in, "Mine", "--config", '{"systemPrompt":"mine"}')
    assert type_in("set", chosen, "--default")[0] == ExitCode.OK
    for flags in ([], ["--agent", "default"]):
        main(["run", "hello", "--cwd", str(tmp_path), *flags])
    capsys.readouterr()
    main(["sessions", "--json"])
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2
    assert type_in("remove", chosen)[0] == ExitCode.USAGE
    main(["sessions", "--agent", chosen, "--json"])
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(
    "argv",
    [
        ["show", "nobody"],
        ["set", "nobody", "{}"],
        ["set", "default"],
        ["set", "default", "{"],
        ["set", "default", "[]"],
        ["set", "default", "[" * 100_000],
        ["set", "default", '{"nope":1}'],
        ["set", "default", '{"systemPrompt":"\ud800"}'],
        ["set", "default", '{"subagentEnabled":true,"subagents":[]}'],
        ["set", "default", "--disable"],
        ["set", "default", "--enable", "--disable"],
        ["set", "nobody", "--default"],
        ["reset", "nobody"],
        ["remove", "default"],
        ["add", "a", "--arg", "x"],
        ["add", "a", "--acp", " "],
        ["add", "a", "--acp", "c", "--env", "novalue"],
        ["add", "a", "--acp", "c", "--config", "{}"],
        ["add", "a", "--config", '{"systemPrompt":1}'],
        ["fly"],
    ],
)
def test_what_can_t_be_done_is_a_sentence_and_changes_nothing(
    type_in: Any, argv: list[str]
) -> None:
    type_in("reset", "default")
    before = agents(type_in)
    status, out, err = type_in(*argv)
    assert status == ExitCode.USAGE
    assert out == ""
    assert err.startswith(("greenroom: ", "usage: "))
    assert "Traceback" not in err
    assert agents(type_in) == before


def test_a_name_that_is_no_text_for_a_terminal_is_printed_harmless(
    type_in: Any,
) -> None:
    made(type_in, "\x1b[31mred\x07\u202e")
    _, out, _ = type_in("list")
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_an_older_system_s_agents_are_taken_over(type_in: Any, tmp_path: Path) -> None:
    old = legacy_file(
        tmp_path / "old.db",
        {"id": "deepchat", "source": "builtin", "config": {"systemPrompt": "b"}},
        {"id": "deepchat-x", "config": {"memoryEnabled": True}},
        {"id": "deepchat-bad", "config": "{"},
    )
    status, out, err = type_in("import", str(old), "--json")
    assert status == ExitCode.OK
    assert json.loads(out)["recovered"] == ["deepchat-bad"]
    assert "deepchat-bad" in err
    listed = agents(type_in)
    assert listed.keys() == {"default", "deepchat-x", "deepchat-bad"}
    assert listed["deepchat-x"]["config"]["systemPrompt"] == "b"
    assert type_in("import", str(old))[0] == ExitCode.OK
    assert agents(type_in) == listed


def test_a_file_that_is_no_older_system_s_database_is_refused(
    type_in: Any, tmp_path: Path
) -> None:
    (tmp_path / "x.db").write_text("hello" * 500)
    assert type_in("import", str(tmp_path / "x.db"))[0] == ExitCode.USAGE
    assert type_in("import", str(tmp_path / "none.db"))[0] == ExitCode.USAGE


#### Whose model answers


def config_of(tmp_path: Path, **flags: Any) -> Any:
    flags |= {"state": str(tmp_path / "state")}
    return load_config(flags=flags, environ={}, file=tmp_path / "none.toml")


def test_an_agent_s_model_answers_unless_somebody_said_otherwise(
    type_in: Any, tmp_path: Path
) -> None:
    nothing = config_of(tmp_path)
    assert with_agent_model(nothing, None) == nothing
    model = {"defaultModel": {"provider": "openai", "model": "m1"}}
    writer = made(type_in, "Writer", "--config", json.dumps(model))
    plain = made(type_in, "Plain")

    def chosen(agent: str | None, **flags: Any) -> tuple[Any, Any]:
        config = with_agent_model(config_of(tmp_path, **flags), agent)
        return config.provider, config.model

    assert chosen(writer) == ("openai", "m1")
    assert chosen(writer, model="m2") == ("openai", "m2")
    assert chosen(writer, provider="deepseek", model="m2") == ("deepseek", "m2")
    assert chosen(writer, base_url="http://localhost:1", model="m2") == (None, "m2")
    assert chosen(plain) == chosen(None) == chosen("nobody") == (None, None)
    assert type_in("set", writer, "--default")[0] == ExitCode.OK
    assert chosen(None) == ("openai", "m1")


def test_a_run_asks_the_provider_of_its_agent(
    type_in: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    model = {"defaultModel": {"provider": "no-such-provider", "model": "m"}}
    writer = made(type_in, "Writer", "--config", json.dumps(model))
    run = ["run", "--cwd", str(tmp_path), "hello"]
    assert main([*run, "--agent", writer]) == ExitCode.USAGE
    assert "no-such-provider" in capsys.readouterr().err
    # Of another agent it is the rehearsal, as ever.
    assert main(run) == ExitCode.OK
