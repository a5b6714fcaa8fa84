"""A conversation that outgrows the real window of a real model goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from greenroom.actors.providers import ChatCompletionsProvider
from greenroom.engine import SlidingWindow, open_engine
from greenroom.storage import open_reader

from .conftest import LocalModel

pytestmark = pytest.mark.realmodel

TURNS = 3
PARAGRAPH = "The quick brown fox jumps over the lazy dog near the river. " * 30
"""Some 420 tokens: three of them are more than the window."""


async def test_a_true_overflow_is_recovered_from(
    narrow_model: LocalModel, tmp_path: Path
) -> None:
    provider = ChatCompletionsProvider(
        narrow_model.base_url, api_key=narrow_model.api_key, profile="llama.cpp"
    )
    async with (
        provider,
        open_engine(
            state=tmp_path / "state",
            provider=provider,
            builtin=False,
            # The model would take minutes to summarise.
            compaction=SlidingWindow(),
        ) as engine,
    ):
        # Nobody says how large the window is: the server does, when it refuses.
        session = await engine.create_session(
            workspace=tmp_path, model=narrow_model.model, system_prompt="Be brief."
        )
        await session.configure(temperature=0.0, max_output_tokens=16)
        for number in range(TURNS):
            turn = await session.prompt(f"{number}: {PARAGRAPH}")
            assert turn.outcome == "completed", (number, turn.error)
        settings = session.settings
        assert settings is not None
        window = engine.context_window(settings)
        assert (window.tokens, window.source) == (narrow_model.context, "provider")

    reader = open_reader(tmp_path / "state")
    entries = reader.page(session.id, 0, 1_000).entries
    messages = reader.messages(session.id)
    reader.close()
    names = [entry.fact.name for entry in entries]
    assert "compaction/context_pressure" in names
    attempts = [
        json.loads(entry.fact.payload)
        for entry in entries
        if entry.fact.name == "provider/attempt_completed"
    ]
    assert "context_overflow" in [attempt["status"] for attempt in attempts]
    assert attempts[-1]["status"] == "completed"
    # Nothing was said twice, and all of it is there.
    said = [m for m in messages if m.role == "user"]
    assert len(said) == TURNS
