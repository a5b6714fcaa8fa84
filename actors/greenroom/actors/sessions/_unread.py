"""Input that was sent to a session and not looked at yet.

A cancel is control mail and overtakes them. It must reach them all the same: whoever
cancels after input was sent means that input as well.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import final

import attrs

from ._messages import Prompt, PutIn


@final
@attrs.define(eq=False)
class Unread:
    """The input in a mailbox, and which of them a cancel has overtaken."""

    # By identity: the same command may be sent twice.
    _cancelled: dict[int, bool] = attrs.field(factory=dict[int, bool], init=False)

    @contextmanager
    def sending(self, request: object) -> Generator[None]:
        """Know *request*, if it is input, until it is read or given up."""
        if not isinstance(request, Prompt | PutIn):
            yield
            return
        self._cancelled[id(request)] = False
        try:
            yield
        finally:
            self._cancelled.pop(id(request), None)

    def __len__(self) -> int:
        return len(self._cancelled)

    def cancel(self) -> None:
        """Cancel all input that was not read yet."""
        self._cancelled = dict.fromkeys(self._cancelled, True)

    def read(self, request: Prompt | PutIn) -> bool:
        """Take *request* out; whether it may go on."""
        return not self._cancelled.pop(id(request), False)
