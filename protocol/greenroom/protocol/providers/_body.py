"""The body of a successful answer: bytes in, stream events out.

A server that was asked to stream may still answer with one JSON object, and what it
calls its content is not always true. The first byte that is not white space tells:
no event stream starts with a brace.
"""

from __future__ import annotations

from typing import Final, final

from .._stream import StreamEvent
from ._chat_completions import ChatCompletionsDecoder
from ._dialects import Profile
from ._failure import make_failure
from ._sse import SseDecoder, SseEvent, SseLimitError
from ._text_calls import TextCalls

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""A whole reply on the wire. A token costs about 200 bytes of it."""

_SPACE: Final = b"\xef\xbb\xbf \t\r\n"


@final
class BodyDecoder:
    """Decodes the body of one reply. Takes nothing more in once it `is_over`."""

    def __init__(
        self,
        profile: Profile,
        *,
        salt: str = "",
        tools: frozenset[str] = frozenset(),
        max_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._reply = ChatCompletionsDecoder(profile, salt=salt)
        self._text_calls = TextCalls(tools, salt) if profile.calls_in_text else None
        self._sse = SseDecoder()
        # The whole body when it is not an event stream; None until that is known.
        self._json: bytearray | None = None
        self._is_known = False
        self._left = max_bytes

    @property
    def is_over(self) -> bool:
        """Whether nothing that still comes can matter."""
        return self._reply.is_over

    @property
    def has_finish_reason(self) -> bool:
        """Whether an end here is a good one, even if the connection broke."""
        return self._reply.has_finish_reason

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Take the next bytes in and return the events that they complete."""
        return self._staged(self._feed(chunk))

    def finish(self) -> list[StreamEvent]:
        """End the body where the connection ended."""
        return self._staged(self._finish())

    def _staged(self, events: list[StreamEvent]) -> list[StreamEvent]:
        return events if self._text_calls is None else self._text_calls.feed(events)

    def _feed(self, chunk: bytes) -> list[StreamEvent]:
        if self.is_over:
            return []
        self._left -= len(chunk)
        if self._left < 0:
            text = "the reply is larger than allowed"
            return self._reply.fail(
                make_failure(text, "response_too_large", retryable=False)
            )
        if not self._is_known:
            chunk = self._look(chunk)
        if self._json is not None:
            self._json += chunk
            return []
        try:
            return self._reply_to(self._sse.feed(chunk))
        except SseLimitError as error:
            failure = make_failure(str(error), error.code, retryable=False)
            return self._reply.fail(failure)

    def _finish(self) -> list[StreamEvent]:
        if self._json is not None:
            return self._reply.feed_body(bytes(self._json))
        return [*self._reply_to(self._sse.close()), *self._reply.finish()]

    def _look(self, chunk: bytes) -> bytes:
        if start := chunk.lstrip(_SPACE):
            self._is_known = True
            if start.startswith(b"{"):
                self._json = bytearray()
                return start
        return chunk

    def _reply_to(self, events: list[SseEvent]) -> list[StreamEvent]:
        return [event for sse in events for event in self._reply.feed(sse.data)]
