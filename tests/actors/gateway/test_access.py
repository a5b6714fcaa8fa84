"""Who is let in, by rules alone."""

from __future__ import annotations

import pytest

from greenroom.actors.endpoints.gateway._access import (
    Access,
    AccessError,
    Token,
    is_loopback,
    tokens_of,
)

SECRET = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2


def test_a_token_allows_its_scopes_and_nothing_else_does():
    access = Access("0.0.0.0", (Token.of(OTHER), Token.of(SECRET, ["read"])))
    assert access.scopes_of(SECRET) == {"read"}
    assert access.scopes_of(OTHER) == {"read", "write", "admin"}
    for wrong in (None, "", SECRET[:-1], SECRET + "x", SECRET.upper(), "\udc80" * 20):
        assert access.scopes_of(wrong) is None


def test_without_tokens_everybody_may_do_everything():
    access = Access("127.0.0.1")
    assert access.scopes_of(None) == access.scopes_of(SECRET)
    assert access.scopes_of(None) == {"read", "write", "admin"}


def test_a_token_file_holds_a_token_and_its_scopes_a_line():
    text = f"# those of the team\n\n{SECRET} read,write\n{OTHER}\n"
    access = Access("0.0.0.0", tokens_of(text))
    assert access.scopes_of(SECRET) == {"read", "write"}
    assert access.scopes_of(OTHER) == {"read", "write", "admin"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "short",
        f"{SECRET} root",
        f"{SECRET} read, write",
        f"{SECRET} read,",
        f"{SECRET}\x07",
        "é" * 20,
        "x" * 5_000,
    ],
)
def test_a_token_file_with_a_wrong_line_is_refused_without_quoting_it(text):
    with pytest.raises(AccessError) as refused:
        tokens_of(text)
    assert SECRET not in str(refused.value)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("host", "tokens", "encrypted", "insecure", "fine"),
    [
        ("127.0.0.1", (), False, False, True),
        ("::1", (), False, False, True),
        ("localhost", (), False, False, True),
        ("0.0.0.0", (), True, True, False),
        ("0.0.0.0", (SECRET,), False, False, False),
        ("::", (SECRET,), False, False, False),
        ("192.168.1.2", (SECRET,), True, False, True),
        ("example.org", (SECRET,), False, True, True),
    ],
)
def test_another_address_needs_a_token_and_encryption(
    host, tokens, encrypted, insecure, fine
):
    access = Access(host, tuple(map(Token.of, tokens)), encrypted)
    if fine:
        access.check(insecure=insecure)
    else:
        with pytest.raises(AccessError):
            access.check(insecure=insecure)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("[::1]", True),
        ("LOCALHOST", True),
        ("page.localhost", True),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("0.0.0.0", False),
        ("", False),
        ("::ffff:8.8.8.8", False),
    ],
)
def test_what_is_loopback(host, loopback):
    assert is_loopback(host) == loopback


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:8427", True),
        ("127.0.0.1:9", True),
        ("[::1]:8427", True),
        ("proxy.example", True),
        ("evil.example:8427", False),
        ("127.0.0.1.evil.example", False),
        ("[::1].evil.example", False),
        ("[::1]evil.example:80", False),
        ("localhost:80@evil.example", False),
        ("localhost@evil.example", False),
        ("localhost:", True),
        (None, False),
        ("", False),
    ],
)
def test_a_name_that_leads_here_by_itself_is_not_ours(host, allowed):
    access = Access("127.0.0.1", allow_origins=("https://proxy.example",))
    assert access.allows_host(host) == allowed


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        (None, "localhost:1", True),
        ("http://localhost:1", "localhost:1", True),
        ("http://localhost:1", "localhost:2", False),
        ("https://gate.example", "gate.example", True),
        ("https://gate.example", "gate.example:443", True),
        ("https://gate.example:444", "gate.example", False),
        ("https://other.example", "localhost:1", True),
        ("https://evil.example", "localhost:1", False),
        ("null", "localhost:1", False),
        ("", "", False),
        ("http://", "", False),
        ("http://[", "[", False),
        ("file://localhost:1", "localhost:1", False),
        ("http://localhost:1", None, False),
    ],
)
def test_pages_of_other_origins_may_not_connect(origin, host, allowed):
    access = Access("127.0.0.1", allow_origins=("https://other.example",))
    assert access.allows_origin(origin, host) == allowed
