"""A session is named by its id, or by how the id begins."""

from __future__ import annotations

import pytest

from greenroom.cli._exit import CliError
from greenroom.cli._look import beginning_with
from greenroom.protocol import DEFAULT_AGENT_ID, SessionId, SessionSettings
from greenroom.storage import SessionRow


def row(name: str) -> SessionRow:
    settings = SessionSettings(
        agent_id=DEFAULT_AGENT_ID,
        title="t",
        workspace="/w",
        provider="p",
        model="m",
    )
    return SessionRow(
        id=SessionId(name),
        settings=settings,
        created_at=0.0,
        updated_at=0.0,
        head=1,
        message_count=0,
        input_tokens=None,
        output_tokens=None,
        has_open_interaction=False,
    )


ROWS = [row("abc"), row("abcd"), row("b1")]


@pytest.mark.parametrize(
    ("target", "found"),
    [("b", "b1"), ("abcd", "abcd"), ("abc", "abc"), ("x", None), ("", None)],
)
def test_the_beginning_of_one_id_is_enough(target: str, found: str | None) -> None:
    assert beginning_with(target, ROWS) == found


def test_the_beginning_of_several_ids_is_refused() -> None:
    with pytest.raises(CliError, match="begins the ids of 2 sessions"):
        beginning_with("ab", ROWS)
