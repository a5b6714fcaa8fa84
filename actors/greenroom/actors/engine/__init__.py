"""The engine that embedders hold; their front door is `greenroom.engine`."""

from __future__ import annotations

from ._engine import Engine as Engine
from ._open import default_state as default_state, open_engine as open_engine
