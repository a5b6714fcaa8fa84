"""What agents remember: told to turns within bounds, taken in behind them.

Nothing here fails or delays a turn by more than its bound (SKL-07, SKL-08).
"""

from __future__ import annotations

from ._contribution import Contributions as Contributions
from ._ingestion import Ingest as Ingest, Ingestion as Ingestion
from ._ports import MemoryPort as MemoryPort, StoreMemory as StoreMemory
