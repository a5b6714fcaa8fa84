"""What counts as progress of a recovery: a boundary on the tape, and a smaller view."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from kit.compacting import SETTINGS, history

from greenroom.actors.context import Compacted, RunRecovery
from greenroom.protocol import (
    ModelRequest,
    ProviderFailure,
    RecoveryLatch,
    ViewBuilder,
)
from greenroom.protocol.context import Numbers, Preflight

REFUSED = ProviderFailure(message="prompt is too long", status=400)


def view_of(text: str) -> ViewBuilder:
    view = ViewBuilder("p", "m")
    for record in history((text, "yes"), ("now", ""))[:3]:
        view.add_record(record)
    return view


class Sizes:
    """Estimates that are the characters of all messages."""

    def preflight(self, request: ModelRequest) -> Any:
        size = sum(len(str(message)) for message in request.messages)
        return Numbers(Preflight(None, 100, size, 0))


@pytest.mark.contract("CTX-21")
@pytest.mark.parametrize(
    ("outcome", "behind", "recovered"),
    [
        ("summarized", "short", True),
        ("boundary_only", "short", True),
        ("summarized", "x" * 1_000, False),
        ("summarized", "x" * 1_001, False),
        ("unchanged", "short", False),
    ],
)
async def test_only_a_durable_boundary_with_a_smaller_view_is_progress(
    outcome: Any, behind: str, recovered: bool
):
    async def compact(_: Any) -> Compacted:
        await trio.lowlevel.checkpoint()
        return Compacted(outcome)

    view = view_of("x" * 1_000)
    request = ModelRequest(model="m", messages=view.messages)
    recovery = RunRecovery(
        SETTINGS,
        view,
        Sizes(),
        compact,
        base=lambda: view_of(behind),
        blocks=lambda: (),
        due=lambda numbers, resumes: compact(None),  # pyright: ignore[reportArgumentType]
    )
    got = await recovery.recover(request, REFUSED, RecoveryLatch(1, 1))
    if recovered:
        assert isinstance(got, ModelRequest)
        assert got.messages == view_of(behind).messages
    else:
        assert got == "retry_projection_unchanged"
