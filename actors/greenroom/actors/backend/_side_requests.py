"""Side requests, as observers are told of them (PER-08)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final

import attrs

from greenroom.protocol import (
    MessageId,
    Notice,
    RunId,
    SessionId,
    SideRequestEnd,
    SideRequestStart,
    Usage,
)


@final
@attrs.define(eq=False)
class SideRequests:
    """Tells of side requests that are made one after the other."""

    _tell: Callable[[Notice], None]
    _new_id: Callable[[], str]
    _purpose: Literal["compaction", "review"]
    _session_id: SessionId
    _run_id: RunId | None = None
    _message_id: MessageId | None = None
    _open: str | None = attrs.field(default=None, init=False)

    def begin(self, provider: str, model: str) -> None:
        """Tell that a request is about to be sent."""
        self._open = self._new_id()
        self._tell(
            SideRequestStart(
                session_id=self._session_id,
                request_id=self._open,
                purpose=self._purpose,
                run_id=self._run_id,
                message_id=self._message_id,
                provider=provider,
                model=model,
            )
        )

    def end(
        self,
        status: Literal["completed", "error", "aborted"],
        *,
        usage: Usage | None = None,
        stop_reason: str | None = None,
        error: str | None = None,
    ) -> None:
        """Tell what came of it; of one whose beginning was not told, nothing."""
        request_id, self._open = self._open, None
        if request_id is None:
            return
        self._tell(
            SideRequestEnd(
                session_id=self._session_id,
                request_id=request_id,
                status=status,
                stop_reason=stop_reason,
                error=error,
                usage=usage,
            )
        )
