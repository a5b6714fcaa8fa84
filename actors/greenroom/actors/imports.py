"""Conversations of an older system, taken over while the engine runs (SES-11).

One conversation at a time, each in a transaction of its own, so that the writer is
held up by none for long, and what was taken over stays when the rest is cut off. Those
that are here already are left as they are, so it can be begun again after anything.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import final

import attrs
import trio

from greenroom.actors.agents import AgentManager
from greenroom.actors.kernel import Clock, Ids
from greenroom.actors.sessions import PieceWriter, StoreReaders
from greenroom.protocol import SessionSettings
from greenroom.storage import Member, Piece, Store
from greenroom.storage.legacy import (
    MAX_PROBLEMS,
    LegacyImport,
    conversation_numbers,
    import_threads,
    survey_threads,
)


@final
@attrs.frozen
class Imports:
    """Takes over what an older system has kept."""

    _writer: PieceWriter
    _readers: StoreReaders
    _member: Member
    _agents: AgentManager
    _provider: str
    """The one of new sessions."""
    _clock: Clock
    _ids: Ids

    async def survey(self, file: Path) -> LegacyImport:
        """Return what `take_over` would do; touches nothing.

        Raises:
            LegacyError: the file is no such database.
        """
        return await self._readers.read(lambda reader: survey_threads(reader, file))

    async def take_over(self, file: Path, workspace: Path) -> LegacyImport:
        """Make sessions of the conversations in *file* that are not here yet.

        Their tools may touch *workspace*. Cancelled, it can be begun again.

        Raises:
            LegacyError: the file is no such database.
            StorageError: the rest was not taken over.
        """
        chosen = await self._agents.select(None)
        who = chosen.model(None, None, self._provider)
        settings = SessionSettings(
            agent_id=chosen.agent.id,
            title="Imported conversation",
            workspace=str(workspace),
            provider=who.provider,
            model=who.model,
        )
        done = LegacyImport((), (), 0)
        for number in await trio.to_thread.run_sync(conversation_numbers, file):
            piece = Piece(self._taker(file, settings, number))
            done = _both(done, await self._writer.submit(piece))
        return done

    def _taker(
        self, file: Path, settings: SessionSettings, number: int
    ) -> Callable[[Store], LegacyImport]:
        now = self._clock.now()
        return lambda store: import_threads(
            store,
            self._member,
            file,
            settings,
            new_id=self._ids.uuid,
            now=now,
            only=[number],
        )


def _both(one: LegacyImport, other: LegacyImport) -> LegacyImport:
    return LegacyImport(
        one.threads + other.threads,
        (one.problems + other.problems)[:MAX_PROBLEMS],
        one.problem_count + other.problem_count,
    )
