"""Runs of native agents: one execution each, from its start fact to its terminal."""

from __future__ import annotations

from ._backend import NativeRuns as NativeRuns
from ._loop import loop_behaviour as loop_behaviour
