"""What providers say: wire formats, in both directions, without I/O.

A profile says how a dialect differs; a request becomes bytes, and bytes become the
stream events of `greenroom.protocol`. Nothing that a peer sends raises here: it
becomes a `ProviderFailure`, within bounds.
"""

from __future__ import annotations

from ._body import MAX_BODY_BYTES as MAX_BODY_BYTES, BodyDecoder as BodyDecoder
from ._chat_completions import (
    ChatCompletionsDecoder as ChatCompletionsDecoder,
    encode_request as encode_request,
    request_payload as request_payload,
)
from ._dialects import (
    PROFILES as PROFILES,
    Profile as Profile,
    profile_for as profile_for,
)
from ._failure import (
    RETRY_HEADERS as RETRY_HEADERS,
    failure_from_chunk as failure_from_chunk,
    failure_from_exception as failure_from_exception,
    failure_from_response as failure_from_response,
    make_failure as make_failure,
)
from ._overflow import (
    OVERFLOW_CODE as OVERFLOW_CODE,
    Confidence as Confidence,
    Overflow as Overflow,
    collect_evidence as collect_evidence,
    overflow_in as overflow_in,
    overflow_of as overflow_of,
)
from ._sse import (
    MAX_EVENT_BYTES as MAX_EVENT_BYTES,
    SseDecoder as SseDecoder,
    SseEvent as SseEvent,
    SseLimitError as SseLimitError,
)
from ._text_calls import (
    TextCall as TextCall,
    TextCalls as TextCalls,
    find_text_calls as find_text_calls,
)
from ._usage import chat_usage as chat_usage
