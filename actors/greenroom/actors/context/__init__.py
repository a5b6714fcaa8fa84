"""What each request of a session carries: made, judged, and said on the tape first.

The decisions are `greenroom.protocol.context`'s; here is what outlives a request (what
was sent last, what a provider counted, how large windows are) and the append that comes
before a send (CTX-03).
"""

from ._views import (
    ContextTooSmallError as ContextTooSmallError,
    RequestViews as RequestViews,
    SessionViews as SessionViews,
    ViewNotKeptError as ViewNotKeptError,
)
from ._windows import Window as Window, Windows as Windows
