"""``greenroom sessions compact``: a summary of what was said, or all of it again.

The model that is configured is asked for the summary. A session that another engine has
loaded is that engine's.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import AsyncExitStack, closing
from typing import Any

import trio

from greenroom.engine import open_engine
from greenroom.protocol import SessionId
from greenroom.storage import open_reader

from ._config import Config
from ._exit import CliError, ExitCode
from ._harmless import json_line, one_line
from ._look import named_session
from ._provider import open_provider, rate_limits_of


def compact_command(arguments: argparse.Namespace, config: Config) -> int:
    """Compact a session, or undo its newest compaction."""
    focus = " ".join(arguments.focus)
    if arguments.undo and focus:
        raise CliError("an undo takes no focus", hint="leave the focus or --undo out")
    # A change makes no state where there is none.
    with closing(open_reader(config.state)) as reader:
        session_id = named_session(reader, arguments.session)
    work = _undo if arguments.undo else _compact
    done = trio.run(work, session_id, focus, config)
    sys.stdout.write(json_line(done) if arguments.json else f"{_line(done)}\n")
    return ExitCode.OK


async def _compact(session_id: SessionId, focus: str, config: Config) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        provider, _ = await open_provider(config, stack)
        engine = await stack.enter_async_context(
            open_engine(
                state=config.state,
                provider=provider,
                rate_limits=rate_limits_of(config, provider),
                builtin=False,
                program="greenroom sessions",
            )
        )
        done = await engine.session(session_id).compact(focus)
    return {
        "outcome": done.outcome,
        "why": done.why,
        "before": done.before,
        "after": done.after,
    }


async def _undo(session_id: SessionId, _: str, config: Config) -> dict[str, Any]:
    async with open_engine(
        state=config.state, builtin=False, program="greenroom sessions"
    ) as engine:
        undone = await engine.session(session_id).undo_compaction()
    return {"outcome": "undone" if undone else "unchanged", "why": ""}


def _line(done: dict[str, Any]) -> str:
    match done["outcome"]:
        case "unchanged":
            why = one_line(done["why"]) or "nothing is compacted"
            return f"nothing was changed: {why}"
        case "undone":
            return "the newest compaction was undone; what it hid is sent again"
        case _:
            saved = f"about {done['before']:,} tokens became {done['after']:,}"
            return f"compacted: {saved}; nothing is lost, --undo sends it again"
