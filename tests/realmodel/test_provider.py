"""The provider against a real model: shapes and behaviour, never wording."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx2
import msgspec
import pytest
import trio

from greenroom.actors.providers import ChatCompletionsProvider, generate_text
from greenroom.protocol import (
    ChatMessage,
    FailureClass,
    ModelRequest,
    ProviderFailure,
    Stop,
    StreamEvent,
    SystemMessage,
    TextDelta,
    TextPart,
    ToolCallEnd,
    ToolCallStart,
    ToolDefinition,
    Usage,
    UsageReported,
    UserMessage,
    classify_failure,
)
from greenroom.protocol.providers import overflow_of

from .conftest import LocalModel

pytestmark = pytest.mark.realmodel

# The model is small: without an example it does not call tools.
INSTRUCTIONS: Final = (
    "You always answer with a tool call first.\nExample:\nuser: weather in Oslo\n"
    'assistant: <tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n'
    "</tool_call>"
)
WEATHER: Final = ToolDefinition(
    "get_weather",
    "Get the weather of a city.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)


def user(text: str) -> UserMessage:
    return UserMessage((TextPart(text),))


def request(*messages: ChatMessage, limit: int = 24, **settings: Any) -> ModelRequest:
    return ModelRequest(
        model="smollm2",
        messages=messages,
        max_output_tokens=limit,
        temperature=0.0,
        **settings,
    )


def provider_for(
    model: LocalModel, *, api_key: str | None = None
) -> ChatCompletionsProvider:
    return ChatCompletionsProvider(
        model.base_url, api_key=api_key or model.api_key, profile="llama.cpp"
    )


async def reply(
    model: LocalModel, asked: ModelRequest, *, api_key: str | None = None
) -> list[StreamEvent]:
    async with (
        provider_for(model, api_key=api_key) as provider,
        provider.stream(asked) as events,
    ):
        return [event async for event in events]


def usage_in(events: list[StreamEvent]) -> Usage:
    told = [event.usage for event in events if isinstance(event, UsageReported)]
    assert told, f"no usage in {events}"
    return told[-1]


async def test_text_is_streamed_with_its_usage_and_its_stop(
    local_model: LocalModel,
) -> None:
    events = await reply(local_model, request(user("Say hi"), limit=12))

    texts = [event for event in events if isinstance(event, TextDelta)]
    assert len(texts) > 1
    assert isinstance(events[-1], Stop)
    assert events[-1].raw in ("stop", "length")
    usage = usage_in(events)
    assert usage.input > 0
    assert 0 < usage.output <= 12
    assert usage.total == usage.input + usage.output


async def test_the_output_limit_is_a_stop_of_its_own(local_model: LocalModel) -> None:
    events = await reply(local_model, request(user("Tell a long story"), limit=5))

    assert events[-1] == Stop(reason="max_tokens", raw="length")


async def test_a_repeated_request_reads_from_the_cache(local_model: LocalModel) -> None:
    asked = request(user("Say hi, and then say it again in other words"), limit=4)
    async with provider_for(local_model) as provider:
        for _ in range(2):
            async with provider.stream(asked) as events:
                usage = usage_in([event async for event in events])

    assert usage.cache_read is not None
    assert 0 < usage.cache_read < usage.input


async def test_a_tool_is_called_with_whole_arguments(local_model: LocalModel) -> None:
    messages = (SystemMessage(INSTRUCTIONS), user("weather in Paris"))

    events = await reply(local_model, request(*messages, limit=120, tools=(WEATHER,)))

    starts = [event for event in events if isinstance(event, ToolCallStart)]
    calls = [event for event in events if isinstance(event, ToolCallEnd)]
    assert [call.id for call in calls] == [start.id for start in starts] != []
    assert len({call.id for call in calls}) == len(calls)
    for call in calls:
        assert call.name == "get_weather"
        assert isinstance(json.loads(call.arguments)["city"], str)
    assert events[-1] == Stop(reason="tool_use", raw="tool_calls")


async def test_a_prompt_that_is_too_long_says_by_how_much(
    local_model: LocalModel,
) -> None:
    (failure,) = await reply(local_model, request(user("word " * 3_000)))

    assert isinstance(failure, ProviderFailure)
    assert failure.status == 400
    assert classify_failure(failure) is FailureClass.CONTEXT_OVERFLOW
    found = overflow_of(failure)
    assert found.limit == local_model.context
    assert (found.actual or 0) > local_model.context


async def test_a_wrong_key_is_refused_for_good(local_model: LocalModel) -> None:
    (failure,) = await reply(local_model, request(user("hi")), api_key="wrong-key-x")

    assert isinstance(failure, ProviderFailure)
    assert failure.status == 401
    assert classify_failure(failure) is FailureClass.PERMANENT


async def test_a_cancel_frees_the_model(local_model: LocalModel) -> None:
    asked = request(user("Tell a very long story"), limit=500)
    async with provider_for(local_model) as provider:
        with trio.CancelScope() as scope:
            async with provider.stream(asked) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        assert await busy_slots(local_model) == 1
                        scope.cancel()

    assert scope.cancelled_caught
    with trio.fail_after(10):
        # The server has no event for it.
        while await busy_slots(local_model):  # noqa: ASYNC110
            await trio.sleep(0.05)


async def busy_slots(model: LocalModel) -> int:
    headers = {"authorization": f"Bearer {model.api_key}"}
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{model.root}/slots", headers=headers)
    slots = msgspec.json.decode(answer.content, type=list[dict[str, Any]])
    return sum(bool(slot["is_processing"]) for slot in slots)


async def test_one_text_can_be_had_in_one_call(local_model: LocalModel) -> None:
    async with provider_for(local_model) as provider:
        text = await generate_text(
            provider, request(user("Say hi")), now=lambda: 0.0, random=lambda: 0.5
        )

    assert text.strip()
