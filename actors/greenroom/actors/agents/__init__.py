"""Agents: what there is, what is in force for each, and who runs their sessions."""

from __future__ import annotations

from ._agents import AgentManager as AgentManager
from ._changes import AgentChanged as AgentChanged, Changes as Changes
from ._native import NativeBackend as NativeBackend
from ._ports import (
    Backend as Backend,
    NoBackendError as NoBackendError,
    PieceWriter as PieceWriter,
    StoreReaders as StoreReaders,
)
from ._removal import Belongings as Belongings
from ._settings import Selected as Selected, SessionDefaults as SessionDefaults
