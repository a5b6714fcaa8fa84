"""Sessions: their actors, their tapes, and those who watch them."""

from __future__ import annotations

from ._follow import (
    Follower as Follower,
    UnknownCursorError as UnknownCursorError,
    follow as follow,
    start_following as start_following,
)
from ._handle import (
    Content as Content,
    SessionHandle as SessionHandle,
    text_of as text_of,
)
from ._hub import (
    Sink as Sink,
    SlowWatcherError as SlowWatcherError,
    Told as Told,
)
from ._messages import (
    AcceptedInput as AcceptedInput,
    AnswerInteraction as AnswerInteraction,
    AssignSession as AssignSession,
    CancelTurn as CancelTurn,
    ChangeSettings as ChangeSettings,
    InputBlockedError as InputBlockedError,
    Prompt as Prompt,
    TurnFailedError as TurnFailedError,
    TurnRefusedError as TurnRefusedError,
    TurnResult as TurnResult,
)
from ._ports import PieceWriter as PieceWriter, StoreReaders as StoreReaders
from ._registry import (
    Loaded as Loaded,
    Sessions as Sessions,
)
from ._rewind import RewindRefusedError as RewindRefusedError, Rewound as Rewound
from ._session import Session as Session
from ._settings import changed_settings as changed_settings
from ._turns import unresolved as unresolved
from ._world import (
    SessionClosedError as SessionClosedError,
    SessionHeldError as SessionHeldError,
    SessionNotFoundError as SessionNotFoundError,
    SessionWorld as SessionWorld,
)
