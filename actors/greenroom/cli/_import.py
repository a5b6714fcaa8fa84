"""``greenroom import``: the conversations of an older system's database.

The file is only read. What is here already is left as it is, so the command can be
given again after anything.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

import attrs

from greenroom.actors.kernel import SystemClock, SystemIds
from greenroom.protocol import SessionSettings, chosen_agent
from greenroom.storage import (
    NoStoreError,
    Store,
    open_reader,
    open_store,
    read_app_settings,
)
from greenroom.storage.legacy import (
    LegacyImport,
    export_thread,
    import_threads,
    survey_threads,
)

from ._config import Config
from ._exit import ExitCode
from ._harmless import harmless, json_line, one_line

_TTL: Final = 3_600.0
"""Seconds that an import may take before others may think it dead."""

_STEP: Final = 100
"""Conversations between two signs of progress."""


def import_command(arguments: argparse.Namespace, config: Config) -> int:
    """Take over, or tell, what is in the file; or write one conversation out."""
    if arguments.export is not None:
        settings = _settings(arguments, config, None)
        now = SystemClock().now()
        lines = export_thread(arguments.file, arguments.export, settings, now=now)
        sys.stdout.writelines(map(json_line, lines))
        return ExitCode.OK
    done = _survey(arguments, config) if arguments.dry_run else _take(arguments, config)
    _print(done, as_json=arguments.json)
    return ExitCode.RUN_FAILED if done.problem_count else ExitCode.OK


def _survey(arguments: argparse.Namespace, config: Config) -> LegacyImport:
    # It makes no state where there is none.
    try:
        reader = open_reader(config.state)
    except NoStoreError:
        return survey_threads(None, arguments.file, done=_progress)
    with closing(reader):
        return survey_threads(reader, arguments.file, done=_progress)


def _take(arguments: argparse.Namespace, config: Config) -> LegacyImport:
    survey_threads(None, arguments.file)  # A file that is none makes no state, either.
    with closing(open_store(config.state)) as store:
        now = SystemClock().now()
        node = f"greenroom import (process {os.getpid()})"
        member = store.join(node, "", _TTL, now=now)
        try:
            done = import_threads(
                store,
                member,
                arguments.file,
                _settings(arguments, config, store),
                new_id=SystemIds().uuid,
                now=now,
                done=_progress,
            )
            make_findable(store)
            return done
        finally:
            store.leave(member, now=SystemClock().now())


def make_findable(store: Store) -> None:
    """Have a search find what was read in: no engine may run that would see to it."""
    while store.index_pending():
        pass


def _settings(
    arguments: argparse.Namespace, config: Config, store: Store | None
) -> SessionSettings:
    chosen = None if store is None else read_app_settings(store).default_agent
    return SessionSettings(
        agent_id=chosen_agent(None, chosen),
        title="Imported conversation",
        workspace=str(arguments.cwd or Path.cwd()),
        provider=config.provider or "",
        model=config.model or "default",
    )


def _progress(done: int, of: int) -> None:
    if of > _STEP and (done % _STEP == 0 or done == of):
        print(f"greenroom: {done} of {of} conversations", file=sys.stderr)


def _print(done: LegacyImport, *, as_json: bool) -> None:
    for problem in done.problems:
        print(f"greenroom: {one_line(problem, 400)}", file=sys.stderr)
    more = done.problem_count - len(done.problems)
    if more:
        print(f"greenroom: and {more} problems more like these", file=sys.stderr)
    for thread in done.threads:
        if as_json:
            sys.stdout.write(json_line(attrs.asdict(thread)))
        else:
            why = f": {thread.reason}" if thread.reason else ""
            title = one_line(thread.title, 50)
            told = f"{thread.messages} messages, {thread.outcome}{harmless(why)}"
            print(f"{thread.id}  {title}  ({told})")
