"""What each request of a session carries: made, judged, and said on the tape first.

The decisions are `greenroom.protocol.context`'s; here is what outlives a request (what
was sent last, what a provider counted, how large windows are) and the append that comes
before a send (CTX-03).
"""

from __future__ import annotations

from ._beginning import (
    Beginning as Beginning,
    incarnation_of as incarnation_of,
    read_beginning as read_beginning,
    read_boundary as read_boundary,
)
from ._compactor import (
    BoundaryMovedError as BoundaryMovedError,
    Compacted as Compacted,
    CompactionWork as CompactionWork,
    Compactor as Compactor,
)
from ._policies import (
    CompactionPolicy as CompactionPolicy,
    CompactionSetup as CompactionSetup,
    Policies as Policies,
)
from ._recovery import RunRecovery as RunRecovery
from ._strategy import (
    Condensed as Condensed,
    CondenseJob as CondenseJob,
    ModelCall as ModelCall,
    SlidingWindow as SlidingWindow,
    Strategy as Strategy,
    SummaryModel as SummaryModel,
)
from ._summaries import SUMMARY_SECONDS as SUMMARY_SECONDS, Summaries as Summaries
from ._views import (
    ContextTooSmallError as ContextTooSmallError,
    RequestViews as RequestViews,
    SessionViews as SessionViews,
    ViewNotKeptError as ViewNotKeptError,
)
from ._windows import Window as Window, Windows as Windows
