"""What ``greenroom serve`` refuses before it serves, and with which exit status."""

from __future__ import annotations

import pytest

from greenroom.cli import main


def refused(capsys, *arguments: str) -> str:
    assert main(["serve", "--demo", "--port", "0", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    return told.err


@pytest.mark.parametrize("text", ["", "short\n", "0123456789abcdef reed\n"])
def test_a_wrong_token_file_is_wrong_configuration(tmp_path, capsys, text):
    file = tmp_path / "tokens"
    file.write_text(text)
    file.chmod(0o600)
    told = refused(capsys, "--token-file", str(file))
    assert "0123456789abcdef" not in told


def test_a_wrong_token_in_the_environment_is_wrong_configuration(capsys, monkeypatch):
    monkeypatch.setenv("GREENROOM_TOKEN", "short")
    assert "openssl rand" in refused(capsys)


def test_a_hint_is_about_what_is_wrong(capsys, monkeypatch):
    monkeypatch.setenv("GREENROOM_TOKEN", "0123456789abcdef")
    elsewhere = ["--host", "192.0.2.1", "--insecure"]
    assert "--host" in refused(capsys, *elsewhere).partition("\n")[2]
