"""Databases of the older system: read, never written, and moved into our own.

Only here are its names known: its kinds, its ids and the fields of its rows (AGT-05).
"""

from __future__ import annotations

from ._agents import (
    LegacyAgents as LegacyAgents,
    read_legacy_agents as read_legacy_agents,
)
from ._file import LegacyError as LegacyError
from ._import import (
    MAX_PROBLEMS as MAX_PROBLEMS,
    Done as Done,
    LegacyImport as LegacyImport,
    LegacyThread as LegacyThread,
    conversation_numbers as conversation_numbers,
    export_thread as export_thread,
    import_threads as import_threads,
    survey_threads as survey_threads,
)
from ._migration import (
    AGENTS_VERSION as AGENTS_VERSION,
    STEPS as STEPS,
    Materialised as Materialised,
    Step as Step,
    aliases as aliases,
    begin_import as begin_import,
    builtin_changed as builtin_changed,
    effective_config as effective_config,
    is_due as is_due,
    is_independent as is_independent,
)
