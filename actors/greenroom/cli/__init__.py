"""The command line: ``greenroom`` and ``python -m greenroom``.

Built on the engine's front door like any other embedder. Everything that comes from a
model or a tool passes `harmless` before it reaches a terminal.
"""

from __future__ import annotations

from ._main import main as main
