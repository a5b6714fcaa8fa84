"""The store in plain Python: the same contract, without a disk."""

from __future__ import annotations

from ._replica import Replica as Replica
from ._store import MemoryStore as MemoryStore
from ._undo import Undo as Undo
