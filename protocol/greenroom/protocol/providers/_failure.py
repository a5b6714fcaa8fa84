"""From what a provider said or did to a `ProviderFailure`, in bounded time (TRY-10).

Three sources: an HTTP answer, an object in a stream, an exception. Whatever they hold,
nothing here raises, follows a cycle or keeps more than the bounds below.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

import msgspec

from .._canonical import safe_text
from .._stream import ProviderFailure
from ._overflow import OVERFLOW_CODE, Overflow, collect_evidence, overflow_in
from ._wire import as_list, as_object, as_text, decode_json

MAX_MESSAGE_CHARS: Final = 2_048
MAX_CODE_CHARS: Final = 128
MAX_HEADER_CHARS: Final = 256
MAX_CAUSES: Final = 5

_T = TypeVar("_T")

RETRY_HEADERS: Final = ("retry-after-ms", "retry-after", "x-should-retry")
_REQUEST_ID_HEADERS: Final = ("x-request-id", "request-id", "x-generation-id")


def make_failure(
    message: str,
    code: str | None = None,
    *,
    status: int | None = None,
    retryable: bool | None = None,
    headers: Mapping[str, str] | None = None,
) -> ProviderFailure:
    """Return a failure whose parts are within bounds and safe to store."""
    return ProviderFailure(
        message=_line(message)[:MAX_MESSAGE_CHARS],
        code=_line(code)[:MAX_CODE_CHARS] if code else None,
        status=status,
        retryable=retryable,
        headers=dict(headers or {}),
    )


def _line(text: str) -> str:
    # Bounded before anything walks it; what is cut off is white space or too long.
    return safe_text(" ".join(text[: 4 * MAX_MESSAGE_CHARS].split()))


#### An HTTP answer


def failure_from_response(
    status: int, headers: Mapping[str, str], body: bytes
) -> ProviderFailure:
    """Return what an answer that is not a success means.

    *headers* have names in lower case; *body* may be cut.
    """
    value: object = decode_json(body)
    # Gemini puts its error into a list of one.
    value = next(iter(as_list(value)), value)
    text, code = _description(value)
    if value is None:
        text = body[:MAX_MESSAGE_CHARS].decode(errors="replace")
    message = f"the provider answered {status}"
    if text:
        message += f": {text}"
    for name in _REQUEST_ID_HEADERS:
        if name in headers:
            message = f"{message[:1_900]} (request {headers[name][:100]})"
            break
    failure = make_failure(
        message, code, status=status, headers=_retry_headers(headers)
    )
    return _with_overflow(failure, value)


def _retry_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: safe_text(headers[name][:MAX_HEADER_CHARS])
        for name in RETRY_HEADERS
        if name in headers
    }


#### An object in a stream


def failure_from_chunk(chunk: Mapping[str, Any]) -> ProviderFailure | None:
    """Return the failure that an object of a stream reports, or ``None``.

    It is in ``error``, or (older vLLM) the object is itself the error.
    """
    error: object = chunk.get("error")
    if chunk.get("object") == "error" and not error:
        error = chunk
    if not (as_object(error) or as_text(error)):
        return None
    text, code = _description({"error": error})
    failure = make_failure(
        text or "the provider reported an error without a word about it",
        code or "provider_error",
        status=_status_in(error),
    )
    return _with_overflow(failure, error)


def _status_in(error: object) -> int | None:
    for name in ("code", "status", "status_code"):
        value = as_object(error).get(name)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    return None


def _description(value: object) -> tuple[str, str | None]:
    """Return the text and the code of an error body, whatever its shape."""
    raw = as_object(value)
    inner: object = raw.get("error") or raw
    if isinstance(inner, str):
        return inner, None
    error = as_object(inner)
    text = as_text(error.get("message")) or as_text(error.get("detail"))
    if not text and error:
        text = collect_evidence(error)
    code = as_text(error.get("code")) or as_text(error.get("type"))
    return text, code or None


def _with_overflow(failure: ProviderFailure, value: object) -> ProviderFailure:
    evidence = collect_evidence(value) or failure.message
    overflow = overflow_in(evidence, status=failure.status, code=failure.code)
    if not overflow:
        return failure
    message = failure.message + _missing_numbers(overflow, failure)
    return msgspec.structs.replace(
        failure, code=OVERFLOW_CODE, message=message[-MAX_MESSAGE_CHARS:]
    )


def _missing_numbers(overflow: Overflow, failure: ProviderFailure) -> str:
    # A later look at the failure has only its message to find the numbers in.
    known = overflow_in(failure.message, status=failure.status, code=OVERFLOW_CODE)
    if None in (overflow.actual, overflow.limit) or known.limit == overflow.limit:
        return ""
    return f" (prompt {overflow.actual} tokens, limit {overflow.limit} tokens)"


#### An exception


def failure_from_exception(error: BaseException) -> ProviderFailure:
    """Return what *error* and its causes say, read with care.

    Every attribute may be missing, of another type, or raise when it is read.
    """
    chain = _chain(error)
    # A dict, because a link often only repeats the one before.
    messages = dict.fromkeys(_guarded(_message, link) or "" for link in chain)
    return make_failure(
        " <- ".join(filter(None, messages)) or type(error).__name__,
        _first(_code, chain),
        status=_first(_status, chain),
        retryable=_first(_retryable, chain),
        headers=_first(_headers, chain),
    )


def _chain(error: BaseException) -> list[BaseException]:
    # The bound ends cycles as well: what repeats itself adds nothing new.
    chain = [error]
    while len(chain) < MAX_CAUSES:
        cause = _guarded(_cause, chain[-1])
        if cause is None:
            break
        chain.append(cause)
    return chain


def _guarded(look: Callable[[Any], _T | None], link: BaseException) -> _T | None:
    try:
        return look(link)
    except Exception:
        return None


def _first(look: Callable[[Any], _T | None], chain: list[BaseException]) -> _T | None:
    for link in chain:
        found = _guarded(look, link)
        if found is not None:
            return found
    return None


def _cause(link: Any) -> BaseException | None:  # noqa: ANN401 - foreign
    if isinstance(link, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", link).exceptions[0]
    # Also a context that was suppressed: HTTP clients hide the socket's reason so.
    cause = link.__cause__ if link.__cause__ is not None else link.__context__
    return cause if isinstance(cause, BaseException) else None


def _message(link: Any) -> str:  # noqa: ANN401 - foreign
    # A group's text ends in how many it holds, which helps nobody.
    text = link.message if isinstance(link, BaseExceptionGroup) else link
    return str(text)[:MAX_MESSAGE_CHARS]


def _code(link: Any) -> str | None:  # noqa: ANN401 - foreign
    code = getattr(link, "code", None)
    if isinstance(code, str) and code:
        return code[:MAX_CODE_CHARS]
    if type(link).__name__ == "gaierror":
        return "dns_failure"
    number = getattr(link, "errno", None)
    return errno.errorcode.get(number) if isinstance(number, int) else None


def _status(link: Any) -> int | None:  # noqa: ANN401 - foreign
    for holder in (link, getattr(link, "response", None)):
        for name in ("status_code", "status"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and 100 <= value <= 599:
                return int(value)
    return None


def _retryable(link: Any) -> bool | None:  # noqa: ANN401 - foreign
    value = getattr(link, "retryable", None)
    return value if isinstance(value, bool) else None


def _headers(link: Any) -> dict[str, str] | None:  # noqa: ANN401 - foreign
    for holder in (link, getattr(link, "response", None)):
        headers = getattr(holder, "headers", None)
        if headers is None:
            continue
        values = {name: headers.get(name) for name in RETRY_HEADERS}
        return _retry_headers({k: v for k, v in values.items() if isinstance(v, str)})
    return None
