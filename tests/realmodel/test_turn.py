"""A whole turn with a real model, tape, tools and all: shapes, not words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from greenroom.actors.providers import ChatCompletionsProvider
from greenroom.engine import open_engine, tool
from greenroom.protocol import (
    DispatchCommitted,
    RunTerminal,
    ToolCallBlock,
    ToolOutcome,
    journal_record,
)
from greenroom.storage import open_reader

from .conftest import LocalModel

pytestmark = pytest.mark.realmodel

SYSTEM = (
    "You always answer with a tool call first.\n"
    "Example:\n"
    "user: weather in Oslo\n"
    'assistant: <tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n'
    "</tool_call>"
)


async def test_a_turn_with_a_tool_is_played_to_its_end(
    local_model: LocalModel, tmp_path: Path
) -> None:
    asked: list[str] = []

    @tool(read_only=True)
    async def get_weather(
        city: Annotated[str, msgspec.Meta(description="The city")],
    ) -> str:
        """Say what the weather is in a city."""
        asked.append(city)
        return f"It is sunny in {city}, 21 degrees."

    provider = ChatCompletionsProvider(
        local_model.base_url, api_key=local_model.api_key, profile="llama.cpp"
    )
    async with (
        provider,
        open_engine(
            state=tmp_path / "state",
            provider=provider,
            tools=[get_weather],
            builtin=False,
        ) as engine,
    ):
        session = await engine.create_session(
            workspace=tmp_path,
            model=local_model.model,
            system_prompt=SYSTEM,
            max_rounds=2,
        )
        await session.configure(temperature=0.0, max_output_tokens=120)
        turn = await session.prompt("weather in Paris")

    calls = [b for b in turn.message.blocks if isinstance(b, ToolCallBlock)]
    assert calls
    assert asked
    assert all(call.response for call in calls)
    assert "Paris" in asked
    assert turn.message.metadata.provider_rounds >= 2
    assert turn.usage is not None
    assert turn.usage.input > 0
    assert turn.outcome in ("completed", "error")

    reader = open_reader(tmp_path / "state")
    entries = reader.page(session.id, 0).entries
    reader.close()
    journal = [journal_record(e.fact) for e in entries if e.fact.is_execution]
    dispatched = [r for r in journal if isinstance(r, DispatchCommitted)]
    outcomes = [r for r in journal if isinstance(r, ToolOutcome)]
    assert len(dispatched) == len(outcomes) == len(asked)
    assert isinstance(journal[-1], RunTerminal)
