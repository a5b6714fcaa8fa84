"""Providers that are alive: the port, and what speaks to real servers.

One call of `Provider.stream` is one physical attempt; what a failed one leads to is
decided elsewhere. Faults are events, cancellation closes the connection at once.
"""

from __future__ import annotations

from ._chat_completions import ChatCompletionsProvider as ChatCompletionsProvider
from ._clocks import Clocks as Clocks
from ._errors import (
    ContextOverflowError as ContextOverflowError,
    ProviderError as ProviderError,
    ProviderRefusedError as ProviderRefusedError,
    ProviderUnavailableError as ProviderUnavailableError,
    provider_error as provider_error,
)
from ._media import (
    CapabilityError as CapabilityError,
    MediaKind as MediaKind,
    MediaProvider as MediaProvider,
    MediaReply as MediaReply,
    MediaRequest as MediaRequest,
    MediaTrace as MediaTrace,
    find_media as find_media,
    request_media as request_media,
)
from ._one_shot import (
    CLIENT_RETRIES as CLIENT_RETRIES,
    OneShotKind as OneShotKind,
    ask_once as ask_once,
    generate_text as generate_text,
)
from ._port import (
    ACP_PROVIDER as ACP_PROVIDER,
    Provider as Provider,
    ShowsWire as ShowsWire,
    Waiting as Waiting,
    ignore_waiting as ignore_waiting,
    may_replay as may_replay,
)
from ._rate_gate import (
    DEFAULT_QPS as DEFAULT_QPS,
    RateGate as RateGate,
    RateLimit as RateLimit,
)
from ._rehearsal import (
    Call as Call,
    Cue as Cue,
    End as End,
    Fail as Fail,
    Halt as Halt,
    Hang as Hang,
    Pause as Pause,
    Raise as Raise,
    RehearsalProvider as RehearsalProvider,
    Reply as Reply,
    Say as Say,
    Script as Script,
    ScriptError as ScriptError,
    Think as Think,
    Use as Use,
    load_script as load_script,
)
