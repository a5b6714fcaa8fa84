"""The built-in tools: files, searches, a shell, and the dialogue with the user.

File tools work inside the workspace only, wherever links lead. What is started is
ended, on every way out. Output is bounded, and whatever was left out is said.
"""

from __future__ import annotations

from ._catalogue import builtin_tools as builtin_tools
from ._keep import kept_output as kept_output
from ._recall import recall_tools as recall_tools
from ._restore import (
    CHANGING_TOOLS as CHANGING_TOOLS,
    FileRestore as FileRestore,
    changes_of as changes_of,
    plan_restore as plan_restore,
    restore_files as restore_files,
)
from ._snapshots import FileChange as FileChange, file_changes as file_changes
