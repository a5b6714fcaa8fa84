"""Whether a call may run: mode, what was asked, and the flag that always asks."""

from __future__ import annotations

import attrs
import pytest

from greenroom.protocol import permission_verdict


@attrs.frozen
class Wants:
    permission: str | None
    always_ask: bool = False


@pytest.mark.parametrize("mode", ["default", "auto_approve", "full_access", "strange"])
def test_nothing_asked_runs_in_every_mode(mode):
    assert permission_verdict(mode, Wants(None)) == "run"


@pytest.mark.parametrize("mode", ["default", "auto_approve", "full_access", "strange"])
@pytest.mark.parametrize("asked", [None, "write x"])
def test_what_requires_confirmation_always_asks(mode, asked):
    assert permission_verdict(mode, Wants(asked, always_ask=True)) == "ask"


@pytest.mark.parametrize(
    ("mode", "verdict"),
    [
        ("default", "ask"),
        ("auto_approve", "run"),
        ("full_access", "run"),
        ("", "ask"),
        ("FULL_ACCESS", "ask"),
    ],
)
def test_what_is_asked_is_granted_by_the_modes_that_say_so_only(mode, verdict):
    assert permission_verdict(mode, Wants("write x")) == verdict
