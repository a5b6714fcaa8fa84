"""The list of the built-in tools."""

from __future__ import annotations

from .._port import Tool
from ._change import EDIT, WRITE
from ._dialogue import ASK_USER, UPDATE_PLAN
from ._list import LIST
from ._read import READ
from ._search import FIND, GREP
from ._shell import SHELL


def builtin_tools() -> tuple[Tool, ...]:
    """Return the tools that greenroom brings, for a `ToolRegistry`."""
    return READ, WRITE, EDIT, LIST, FIND, GREP, SHELL, ASK_USER, UPDATE_PLAN
