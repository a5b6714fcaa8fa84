"""Whether a call may run: mode, what was asked, and the flag that always asks."""

from __future__ import annotations

import attrs
import pytest

from greenroom.protocol import permission_verdict, tool_layer_mode

MODES = ["default", "auto_approve", "full_access", "strange"]


@attrs.frozen
class Wants:
    permission: str | None
    always_ask: bool = False
    reviewable: bool = False


@pytest.mark.parametrize("mode", MODES)
def test_nothing_asked_runs_in_every_mode(mode):
    assert permission_verdict(mode, Wants(None)) == "run"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("asked", [None, "write x"])
@pytest.mark.parametrize("reviewable", [True, False])
def test_what_requires_confirmation_always_asks(mode, asked, reviewable):
    wants = Wants(asked, always_ask=True, reviewable=reviewable)
    assert permission_verdict(mode, wants) == "ask"


@pytest.mark.parametrize(
    ("mode", "verdict"),
    [
        ("default", "ask"),
        ("auto_approve", "review"),
        ("full_access", "run"),
        ("", "ask"),
        ("FULL_ACCESS", "ask"),
    ],
)
def test_what_is_asked_is_granted_by_the_modes_that_say_so_only(mode, verdict):
    assert permission_verdict(mode, Wants("write x")) == verdict


@pytest.mark.parametrize("mode", MODES)
def test_only_auto_approve_reviews_what_asks_nothing(mode):
    verdict = "review" if mode == "auto_approve" else "run"
    assert permission_verdict(mode, Wants(None, reviewable=True)) == verdict


def test_tools_see_auto_approve_as_full_access():
    seen = [tool_layer_mode(mode) for mode in MODES]
    assert seen == ["default", "full_access", "full_access", "strange"]
