"""Requests as each dialect wants them."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from greenroom.protocol import (
    AssistantMessage,
    ChatMessage,
    ImagePart,
    ModelRequest,
    Reasoning,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from greenroom.protocol.providers import (
    PROFILES,
    Profile,
    encode_request,
    profile_for,
)

HELLO: Final = UserMessage((TextPart("hello"),))
TOOL: Final = ToolDefinition("ls", "List files.", {"type": "object"})


def payload(
    *messages: ChatMessage, profile: str = "compatible", **settings: Any
) -> dict[str, Any]:
    request = ModelRequest(model="m", messages=messages or (HELLO,), **settings)
    return msgspec.json.decode(encode_request(request, PROFILES[profile]))


def wired(*messages: ChatMessage, profile: str = "compatible") -> list[dict[str, Any]]:
    return payload(*messages, profile=profile)["messages"]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_plain_request_says_no_more_than_it_must(profile: str) -> None:
    assert payload(profile=profile) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (
            "openai",
            {"max_completion_tokens": 9, "reasoning_effort": "low", "verbosity": "low"},
        ),
        ("deepseek", {"max_tokens": 9, "reasoning_effort": "low"}),
        ("ollama", {"max_tokens": 9, "reasoning_effort": "low"}),
        (
            "openrouter",
            {"max_tokens": 9, "reasoning": {"effort": "low"}, "verbosity": "low"},
        ),
    ],
)
def test_settings_go_under_the_names_of_the_dialect(
    profile: str, expected: dict[str, Any]
) -> None:
    got = payload(
        profile=profile,
        max_output_tokens=9,
        temperature=0.0,
        top_p=0.5,
        reasoning_effort="low",
        verbosity="low",
    )

    expected = expected | {"temperature": 0.0, "top_p": 0.5}
    assert {
        k: v for k, v in got.items() if k not in payload(profile=profile)
    } == expected


def test_usage_is_not_asked_for_where_the_profile_forbids_it() -> None:
    strict = Profile(name="strict", asks_for_usage=False)
    request = ModelRequest(model="m", messages=(HELLO,))

    assert "stream_options" not in msgspec.json.decode(encode_request(request, strict))


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_tools_are_functions_and_auto_needs_no_word(choice: str) -> None:
    got = payload(tools=(TOOL,), tool_choice=choice)

    function = {
        "name": "ls",
        "description": "List files.",
        "parameters": TOOL.parameters,
    }
    assert got["tools"] == [{"type": "function", "function": function}]
    assert got.get("tool_choice", "auto") == choice
    assert ("tool_choice" in got) == (choice != "auto")


def test_a_choice_without_tools_is_not_sent() -> None:
    assert "tool_choice" not in payload(tool_choice="required")


@pytest.mark.parametrize("profile", PROFILES)
def test_instructions_have_the_role_of_the_dialect(profile: str) -> None:
    role = "developer" if profile == "openai" else "system"

    assert wired(SystemMessage("be kind"), HELLO, profile=profile)[0] == {
        "role": role,
        "content": "be kind",
    }


def test_images_go_as_data_next_to_the_text() -> None:
    message = UserMessage((TextPart("what?"), ImagePart("image/png", "aGk=")))

    assert wired(message)[0]["content"] == [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
    ]


def test_text_alone_goes_as_a_string() -> None:
    assert wired(UserMessage((TextPart("a"), TextPart("b"))))[0]["content"] == "a\nb"


CALL: Final = ToolCall(id="call_1", name="ls", arguments='{"path":"."}')
RESULT: Final = ToolMessage(call_id="call_1", name="ls", text="a.txt")


def test_calls_and_results_are_paired_by_id() -> None:
    assistant, tool = wired(AssistantMessage(calls=(CALL,)), RESULT)

    function = {"name": "ls", "arguments": '{"path":"."}'}
    assert assistant == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    assert tool == {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"}


def test_an_assistant_message_without_content_is_left_out() -> None:
    thought = AssistantMessage(reasoning=(Reasoning("hm"),))

    assert wired(HELLO, thought, HELLO) == wired(HELLO, HELLO)


@pytest.mark.parametrize(
    "call_id", ["functions.ls:0", "x" * 41, "chatcmpl-tool-" + "0" * 32, "é", "", "a b"]
)
def test_ids_that_openai_refuses_are_replaced_alike_in_call_and_result(
    call_id: str,
) -> None:
    call = ToolCall(id=call_id, name="ls", arguments="{}")
    messages = (
        AssistantMessage(calls=(call,)),
        ToolMessage(call_id=call_id, name="ls", text=""),
    )

    assistant, tool = wired(*messages, profile="openai")
    sent = assistant["tool_calls"][0]["id"]
    assert sent == tool["tool_call_id"] != call_id
    assert len(sent) <= 40
    assert sent.isascii()
    assert wired(*messages, profile="vllm")[1]["tool_call_id"] == call_id


@pytest.mark.parametrize("call_id", ["call_1", "a-B_9", "x" * 40])
def test_ids_that_openai_takes_are_kept(call_id: str) -> None:
    call = ToolCall(id=call_id, name="ls", arguments="{}")

    (assistant,) = wired(AssistantMessage(calls=(call,)), profile="openai")
    assert assistant["tool_calls"][0]["id"] == call_id


#### Thinking that goes back

DETAILS: Final = [{"type": "reasoning.text", "text": "ab", "signature": "s"}]
THOUGHTS: Final = (
    Reasoning("a", {"reasoning_details": [{"type": "reasoning.text", "text": "a"}]}),
    Reasoning("b", {"reasoning_details": DETAILS}),
    Reasoning("c"),
)


@pytest.mark.parametrize("thoughts", [(), THOUGHTS])
def test_deepseek_gets_the_thinking_of_turns_with_calls_even_when_empty(
    thoughts: tuple[Reasoning, ...],
) -> None:
    with_call = AssistantMessage(reasoning=thoughts, calls=(CALL,))
    without = AssistantMessage(text="hi", reasoning=thoughts)

    first, _, second = wired(with_call, RESULT, without, profile="deepseek")
    assert first["reasoning_content"] == ("abc" if thoughts else "")
    assert "reasoning_content" not in second


def test_openrouter_gets_the_last_and_complete_details_as_they_came() -> None:
    message = AssistantMessage(text="hi", reasoning=THOUGHTS)

    assert wired(message, profile="openrouter")[0] == {
        "role": "assistant",
        "content": "hi",
        "reasoning_details": DETAILS,
    }


def test_openrouter_gets_no_details_where_none_came() -> None:
    message = AssistantMessage(text="hi", reasoning=(Reasoning("a"),))

    assert set(wired(message, profile="openrouter")[0]) == {"role", "content"}


@pytest.mark.parametrize("profile", ["openai", "ollama", "vllm", "llama.cpp"])
def test_other_dialects_get_no_thinking(profile: str) -> None:
    message = AssistantMessage(text="hi", reasoning=THOUGHTS, calls=(CALL,))

    assert set(wired(message, profile=profile)[0]) == {"role", "content", "tool_calls"}


def test_what_belongs_to_a_call_goes_back_with_it() -> None:
    extra = {"google": {"thought_signature": "c2ln"}}
    call = msgspec.structs.replace(CALL, options={"extra_content": extra})

    assert (
        wired(AssistantMessage(calls=(call,)))[0]["tool_calls"][0]["extra_content"]
        == extra
    )


def test_what_no_peer_can_read_is_replaced() -> None:
    assert (
        wired(UserMessage((TextPart("a\x00b\ud800c"),)))[0]["content"]
        == "a\ufffdb\ufffdc"
    )


#### Profiles


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://API.openai.com:443/v1", "openai"),
        ("https://user@api.deepseek.com", "deepseek"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("http://localhost:11434/v1", "ollama"),
        ("http://127.0.0.1:8080/v1", "compatible"),
        ("https://api.openai.com.evil.example/v1", "compatible"),
        ("https://evil.example/api.openai.com", "compatible"),
        ("https://evil.example?u=https://api.openai.com", "compatible"),
        ("http://[::1]:11434/v1", "ollama"),
        ("not a url", "compatible"),
        ("", "compatible"),
        (None, "compatible"),
    ],
)
def test_a_profile_is_guessed_from_the_address(base_url: str | None, name: str) -> None:
    assert profile_for(base_url).name == name


def test_a_named_profile_wins_over_the_address() -> None:
    assert profile_for("https://api.openai.com/v1", "vllm").name == "vllm"


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"no provider profile 'gpt'; known are .*ollama"
    ):
        profile_for(None, "gpt")


def test_every_usual_address_leads_to_its_profile() -> None:
    guessed = {
        profile_for(profile.base_url).name
        for profile in PROFILES.values()
        if profile.name in ("openai", "deepseek", "openrouter", "ollama")
    }

    assert guessed == {"openai", "deepseek", "openrouter", "ollama"}
