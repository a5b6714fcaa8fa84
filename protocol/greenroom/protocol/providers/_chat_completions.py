"""Chat Completions: a request out, stream events in.

The decoder is fed the data of the stream's events, or one whole body from a server
that does not stream. It holds back what may still change: the stop reason (the last
one wins, and content may follow it), and calls that are not announced. After a
failure, or after the end, it takes nothing more in.

An end without a finish reason is no end: unless ``[DONE]`` came behind some output
whose calls are whole, no stop is made, and the attempt judges (TRY-13).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, assert_never, final

import msgspec

from .._canonical import safe_json, sha256_hex
from .._messages import (
    AssistantMessage,
    ChatMessage,
    ImagePart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from .._request import ModelRequest
from .._stream import (
    ProviderFailure,
    ReasoningDelta,
    Stop,
    StreamEvent,
    TextDelta,
    UsageReported,
)
from ._assembly import CallAssembly, TooManyCallsError
from ._dialects import Profile
from ._failure import failure_from_chunk, make_failure
from ._finish import finish_of
from ._reasoning import ReasoningDetails
from ._usage import chat_usage
from ._wire import as_list, as_object, as_text, decode_object

MAX_FINISH_CHARS: Final = 128

_PLAIN_ID: Final = re.compile("[A-Za-z0-9_-]+")
_REPLACED_ID: Final = re.compile("call_[0-9a-f]{32}")

#### The request


def encode_request(request: ModelRequest, profile: Profile) -> bytes:
    """Return the body of *request* in the dialect of *profile*, asking to stream."""
    return msgspec.json.encode(safe_json(request_payload(request, profile)))


def request_payload(request: ModelRequest, profile: Profile) -> dict[str, Any]:
    """Return *request* as the JSON value that `encode_request` writes."""
    payload: dict[str, Any] = {
        "model": request.model,
        "messages": [
            wired
            for message in request.messages
            if (wired := _message(message, profile)) is not None
        ],
        "stream": True,
    }
    if profile.asks_for_usage:
        payload["stream_options"] = {"include_usage": True}
    return payload | _tools(request) | _settings(request, profile)


def _tools(request: ModelRequest) -> dict[str, Any]:
    if not request.tools:
        return {}
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            },
        }
        for tool in request.tools
    ]
    if request.tool_choice == "auto":
        return {"tools": tools}
    return {"tools": tools, "tool_choice": request.tool_choice}


def _settings(request: ModelRequest, profile: Profile) -> dict[str, Any]:
    effort: object = request.reasoning_effort
    if effort is not None and profile.effort_field == "reasoning":
        effort = {"effort": effort}
    settings = {
        profile.max_tokens_field: request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        profile.effort_field: effort,
        "verbosity": request.verbosity if profile.sends_verbosity else None,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _message(message: ChatMessage, profile: Profile) -> dict[str, Any] | None:
    match message:
        case SystemMessage(text=text):
            return {"role": profile.system_role, "content": text}
        case UserMessage(parts=parts):
            return {"role": "user", "content": _user_content(parts)}
        case AssistantMessage():
            return _assistant(message, profile)
        case ToolMessage(call_id=call_id, text=text):
            call_id = _call_id(call_id, profile)
            return {"role": "tool", "tool_call_id": call_id, "content": text}
        case _:
            assert_never(message)


def _user_content(parts: tuple[TextPart | ImagePart, ...]) -> str | list[Any]:
    # Plain text goes as a string: lists confuse some models.
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if len(texts) == len(parts):
        return "\n".join(texts)
    return [_part(part) for part in parts]


def _part(part: TextPart | ImagePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    url = f"data:{part.media_type};base64,{part.data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _assistant(message: AssistantMessage, profile: Profile) -> dict[str, Any] | None:
    if not message.text and not message.calls:
        return None
    wired: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if message.calls:
        wired["tool_calls"] = [_call(call, profile) for call in message.calls]
    if profile.reasoning_replay == "content" and message.calls:
        # DeepSeek refuses a turn with calls that lacks it, even when it is empty.
        wired["reasoning_content"] = "".join(part.text for part in message.reasoning)
    if profile.reasoning_replay == "details":
        wired |= _last_details(message)
    return wired


def _last_details(message: AssistantMessage) -> dict[str, Any]:
    # Each block's options hold everything so far, so the last one is complete.
    for part in reversed(message.reasoning):
        if part.options and part.options.get("reasoning_details"):
            return {"reasoning_details": part.options["reasoning_details"]}
    return {}


def _call(call: ToolCall, profile: Profile) -> dict[str, Any]:
    wired: dict[str, Any] = {
        "id": _call_id(call.id, profile),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    if call.options and "extra_content" in call.options:
        wired["extra_content"] = call.options["extra_content"]
    return wired


def _call_id(call_id: str, profile: Profile) -> str:
    # An id that the server would refuse is replaced, the same in calls and results.
    # So is one that could be taken for a replaced one: a model repeats what it reads.
    limit = profile.call_id_limit
    if limit is None:
        return call_id
    if (
        len(call_id) <= limit
        and _PLAIN_ID.fullmatch(call_id)
        and not _REPLACED_ID.fullmatch(call_id)
    ):
        return call_id
    return f"call_{sha256_hex(call_id)[:32]}"


#### The reply


@final
class ChatCompletionsDecoder:
    """Decodes one reply.

    *salt* makes ids for calls that came without one: equal for equal salts, so that a
    repeated request has the same ids, and different for different ones.
    """

    def __init__(self, profile: Profile, *, salt: str = "") -> None:
        self._profile = profile
        self._calls = CallAssembly(salt)
        self._details = ReasoningDetails()
        self._finish: str | None = None
        self._has_output = False
        self._closed = False

    @property
    def is_over(self) -> bool:
        """Whether nothing that still comes can matter."""
        return self._closed

    @property
    def has_finish_reason(self) -> bool:
        """Whether the model said why it stopped, so that an end here is a good one."""
        return self._finish is not None

    def feed(self, data: str) -> list[StreamEvent]:
        """Take the data of one event of the stream in."""
        if self._closed:
            return []
        if data.strip() == "[DONE]":
            return self._close(done=True)
        chunk = decode_object(data)
        if chunk is None and self.has_finish_reason:
            # Most likely a cut usage or ``[DONE]``: the reply itself is whole.
            return self._close(done=False)
        if chunk is None:
            return self.fail(_bad_chunk(data))
        return self._guarded(chunk)

    def feed_body(self, body: bytes) -> list[StreamEvent]:
        """Take a whole reply in, from a server that does not stream, and end."""
        if self._closed:
            return []
        value = decode_object(body)
        if value is None:
            return self.fail(_bad_chunk(body[:200].decode(errors="replace")))
        return [*self._guarded(value), *self.finish()]

    def finish(self) -> list[StreamEvent]:
        """End the reply where the stream ended."""
        return [] if self._closed else self._close(done=False)

    def fail(self, failure: ProviderFailure) -> list[StreamEvent]:
        """End the reply with a failure, once."""
        if self._closed:
            return []
        self._closed = True
        return [failure]

    #### Inside

    def _guarded(self, chunk: dict[str, Any]) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        try:
            for event in self._take(chunk):
                events.append(event)  # noqa: PERF402 - keeps what came before a raise
        except TooManyCallsError as error:
            events += self.fail(make_failure(str(error), error.code, retryable=False))
        except RecursionError:
            events += self.fail(_bad_chunk("nested too deep"))
        return events

    def _take(self, chunk: dict[str, Any]) -> Iterator[StreamEvent]:
        choice = _first_choice(chunk)
        failure = failure_from_chunk(chunk) or failure_from_chunk(
            {"error": choice.get("error")}
        )
        if failure is not None:
            yield from self.fail(failure)
            return
        for event in self._content(
            as_object(choice.get("delta")) or as_object(choice.get("message"))
        ):
            self._has_output = True
            yield event
        self._finish = as_text(choice.get("finish_reason")) or self._finish
        usage = chat_usage(chunk.get("usage")) or chat_usage(choice.get("usage"))
        if usage is not None:
            yield UsageReported(usage=usage)

    def _content(self, delta: Mapping[str, Any]) -> Iterator[StreamEvent]:
        # Some servers send the same thought under both names: the first one counts.
        thought = as_text(delta.get("reasoning_content"))
        thought = thought or as_text(delta.get("reasoning"))
        if thought:
            yield ReasoningDelta(thought)
        if self._profile.reasoning_replay == "details":
            self._details.feed(delta.get("reasoning_details"))
        text = as_text(delta.get("refusal")) + _text(delta.get("content"))
        if text:
            yield from self._details.flush()
            yield TextDelta(text)
        yield from self._call_events(delta)

    def _call_events(self, delta: Mapping[str, Any]) -> Iterator[StreamEvent]:
        entries = as_list(delta.get("tool_calls"))
        if "function_call" in delta:
            entries = [*entries, {"index": 0, "function": delta["function_call"]}]
        for entry in entries:
            events = self._calls.feed(entry)
            if events:
                yield from self._details.flush()
            yield from events

    def _close(self, *, done: bool) -> list[StreamEvent]:
        self._closed = True
        if self._finish is None and not (
            done and (self._has_output or self._calls) and self._calls.are_whole
        ):
            return []
        raw = (self._finish or "")[:MAX_FINISH_CHARS]
        reason, failure = finish_of(raw, has_output=self._has_output)
        events: list[StreamEvent] = [*self._details.flush()]
        if failure is not None:
            return [*events, failure, Stop(reason=reason, raw=raw)]
        events += self._calls.close(normal=reason != "max_tokens")
        if (
            reason == "complete"
            and self._calls
            and self._profile.stop_with_calls_is_tool_use
        ):
            reason = "tool_use"
        return [*events, Stop(reason=reason, raw=raw)]


def _first_choice(chunk: Mapping[str, Any]) -> dict[str, Any]:
    for item in as_list(chunk.get("choices")):
        choice = as_object(item)
        if choice and choice.get("index") in (0, None):
            return choice
    return {}


def _text(content: object) -> str:
    if isinstance(content, str):
        return as_text(content)
    parts = (as_object(part) for part in as_list(content))
    return "".join(as_text(p.get("text")) for p in parts if p.get("type") == "text")


def _bad_chunk(data: str) -> ProviderFailure:
    sample = " ".join(data[:80].split())
    return make_failure(
        f"the provider sent something that is not a JSON object: {sample!r}",
        "bad_chunk",
        retryable=True,
    )
