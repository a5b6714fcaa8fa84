from __future__ import annotations

import math
import os
import re
from pathlib import Path

import pytest

from greenroom.actors.providers import Clocks, RateLimit, RehearsalProvider
from greenroom.cli._config import (
    KEYS,
    MAX_FILE_BYTES,
    Config,
    ConfigError,
    load_config,
)
from greenroom.cli._exit import CliError
from greenroom.cli._parser import build_parser, flags_of
from greenroom.cli._provider import clocks_of, rate_limits_of
from greenroom.engine import default_state

SECRET = "sk-very-secret-0123456789"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def load(
    file: Path,
    text: str | None = None,
    environ: dict[str, str] | None = None,
    **flags: object,
) -> Config:
    if text is not None:
        file.write_text(text)
    return load_config(flags=flags, environ=environ or {}, file=file)


def test_without_any_layer_every_value_is_a_default(file: Path) -> None:
    config = load(file)

    assert config.state == default_state()
    assert (config.permission_mode, config.color) == ("default", "auto")
    assert (config.model, config.base_url, config.max_rounds) == (None, None, None)
    assert set(config.origins) == set(KEYS)
    assert set(config.origins.values()) == {"default"}


def test_each_layer_wins_over_the_ones_before_it(file: Path) -> None:
    text = 'model = "from-file"\nprovider = "ollama"\ncolor = "never"\n'
    environ = {"GREENROOM_MODEL": "from-environ", "GREENROOM_PROVIDER": "vllm"}

    config = load(file, text, environ, model="from-flag")

    assert (config.model, config.provider, config.color) == (
        "from-flag",
        "vllm",
        "never",
    )
    assert config.origins["model"] == "flag --model"
    assert config.origins["provider"] == "environment GREENROOM_PROVIDER"
    assert config.origins["color"] == f"file {file}"
    assert config.origins["state"] == "default"


def test_numbers_come_as_text_from_the_environment_and_as_numbers_from_a_file(
    file: Path,
) -> None:
    assert load(file, environ={"GREENROOM_MAX_ROUNDS": "7"}).max_rounds == 7
    assert load(file, "max_rounds = 8").max_rounds == 8
    with pytest.raises(ConfigError, match="max_rounds must be a whole number"):
        load(file, 'max_rounds = "8"')


def test_zero_rounds_take_a_limit_back(file: Path) -> None:
    config = load(file, "max_rounds = 8", max_rounds=0)

    assert config.max_rounds is None
    assert config.origins["max_rounds"] == "flag --max-rounds"


def test_an_empty_variable_is_unset(file: Path) -> None:
    config = load(file, 'model = "m"', {"GREENROOM_MODEL": ""})

    assert config.model == "m"


def test_variables_of_others_are_not_our_business(file: Path) -> None:
    assert load(file, environ={"GREENROOM_SOMETHING": "x"}).model is None


def test_an_unknown_key_is_named_with_its_file_and_the_known_ones(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file, 'modle = "m"')

    assert str(caught.value) == f"{file}: unknown key 'modle'"
    assert caught.value.hint is not None
    assert "model" in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "line",
    [
        "model = 3",
        'model = ""',
        'model = "a\\u001bb"',
        "model = ['m']",
        "[model]\nname = 'm'",
        'color = "sometimes"',
        'permission_mode = "yolo"',
        "max_rounds = -1",
        "max_rounds = 1.5",
        "max_rounds = true",
        "requests_per_second = -1",
        "requests_per_second = nan",
        "requests_per_second = true",
        'connect_seconds = "5"',
        "idle_seconds = inf",
        "content_idle_seconds = 86401",
        'base_url = "ftp://host/v1"',
        'base_url = "localhost:11434"',
        'base_url = "http://user:secret@host/v1"',
        'base_url = "http://host/v1?key=secret"',
        'base_url = "http://host:port/v1"',
        'base_url = "http:///v1"',
        'state = "relative/folder"',
        'api_key_env = "not a name"',
    ],
)
def test_a_value_that_cannot_be_used_is_named_and_never_repeated(
    file: Path, line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file, line)

    where, key, _ = re.split(r": (\w+) must be ", str(caught.value))
    assert where == str(file)
    assert key in line
    assert "secret" not in str(caught.value)


def test_a_key_in_the_place_of_its_variable_is_not_printed(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file, f'api_key_env = "{SECRET}"')

    assert "not the key itself" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "name", ["model", "base_url", "max_rounds", "color", "permission_mode"]
)
def test_a_wrong_variable_is_named(file: Path, name: str) -> None:
    variable = f"GREENROOM_{name.upper()}"
    with pytest.raises(ConfigError, match=f"environment {variable}: {name} must be"):
        load(file, environ={variable: "\x00"})


def test_the_state_folder_is_made_absolute(file: Path) -> None:
    assert load(file, state="here").state == Path("here").absolute()
    assert load(file, state="~/here").state == Path.home() / "here"
    assert load(file, 'state = "~/there"').state == Path.home() / "there"
    home = load(file, "", {"GREENROOM_STATE": "~/mine"})
    assert home.state == Path.home() / "mine"


def test_a_home_that_is_not_known_is_an_error_not_a_crash(file: Path) -> None:
    with pytest.raises(ConfigError, match="home folder that is not known"):
        load(file, 'state = "~no-such-user-here/x"')


#### The file


@pytest.mark.parametrize("text", ["= 1", "a = 1\na = 2", "x = [[[", "model = '"])
def test_a_file_that_is_not_toml_is_named(file: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.toml: is not valid TOML"):
        load(file, text)


def test_a_file_nested_too_deeply_is_an_error_not_a_crash(file: Path) -> None:
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(file, "model = " + "[" * 30_000)


def test_a_file_that_is_not_utf8_is_named(file: Path) -> None:
    file.write_bytes(b'model = "\xff"')
    with pytest.raises(ConfigError, match="can't be read: it is not UTF-8"):
        load(file)


def test_a_file_that_is_too_large_is_refused(file: Path) -> None:
    file.write_text("#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="is larger than 65536 bytes"):
        load(file)


def test_a_folder_in_the_place_of_the_file_is_refused(file: Path) -> None:
    file.mkdir()
    with pytest.raises(ConfigError, match=r"config\.toml: "):
        load(file)


def test_a_pipe_in_the_place_of_the_file_does_not_hang(file: Path) -> None:
    os.mkfifo(file)
    with pytest.raises(ConfigError, match="is not a regular file"):
        load(file)


#### Keys


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, None),
        ({"GREENROOM_API_KEY": SECRET, "OPENAI_API_KEY": "x"}, "GREENROOM_API_KEY"),
        ({"GREENROOM_API_KEY": "", "OPENAI_API_KEY": SECRET}, "OPENAI_API_KEY"),
    ],
)
def test_the_key_is_found_by_default_in_two_places(
    file: Path, environ: dict[str, str], found: str | None
) -> None:
    config = load(file)

    assert config.api_key_variable(environ) == found
    assert config.api_key(environ) == (SECRET if found else None)


def test_a_configured_variable_is_the_only_one_that_is_read(file: Path) -> None:
    config = load(file, 'api_key_env = "MY_KEY"')

    assert config.api_key({"OPENAI_API_KEY": SECRET}) is None
    assert config.api_key({"MY_KEY": SECRET}) == SECRET


def test_a_description_says_that_a_key_is_set_and_never_which(file: Path) -> None:
    environ = {"OPENAI_API_KEY": SECRET}
    config = load(file)

    described = config.describe(environ)

    assert described["api_key"] == {
        "value": "set",
        "origin": "environment OPENAI_API_KEY",
    }
    assert config.describe({})["api_key"]["value"] == "not set"
    assert SECRET not in repr(described) + repr(config)
    assert set(described) == {*KEYS, "api_key"}


def test_a_provider_gets_its_clocks_and_its_rate_from_any_layer(file: Path) -> None:
    text = "connect_seconds = 2\nidle_seconds = 0\nrequests_per_second = 0.5\n"
    config = load(file, text, {"GREENROOM_FIRST_BYTE_SECONDS": "600.5"})
    provider = RehearsalProvider([], id="mine")

    assert clocks_of(config) == Clocks(connect=2, first_byte=600.5, idle=math.inf)
    assert rate_limits_of(config, provider) == {"mine": RateLimit(qps=0.5)}


def test_without_settings_clocks_are_the_usual_ones_and_nobody_waits(
    file: Path,
) -> None:
    provider = RehearsalProvider([])

    assert clocks_of(load(file)) == Clocks()
    assert rate_limits_of(load(file), provider) == {}
    assert rate_limits_of(load(file, "requests_per_second = 0"), provider) == {}


def test_a_rate_that_nobody_would_wait_for_is_refused(file: Path) -> None:
    config = load(file, "requests_per_second = 1e-9")
    with pytest.raises(CliError, match="requests_per_second can't be used"):
        rate_limits_of(config, RehearsalProvider([]))


def test_the_form_of_the_log_is_text_unless_somebody_says_json(file: Path) -> None:
    assert load(file).log == "text"
    by_variable = load(file, environ={"GREENROOM_LOG": "json"})
    assert by_variable.log == "json"
    flags = flags_of(build_parser(["acp"]).parse_args(["acp", "--log", "json"]))
    assert load(file, log=flags["log"]).origins["log"] == "flag --log"
    with pytest.raises(ConfigError, match="log must be one of text, json"):
        load(file, environ={"GREENROOM_LOG": "yaml"})
