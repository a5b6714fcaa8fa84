"""Calls about sessions as a whole: fork, move, rewind, compact, put away, delete."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from greenroom.actors.opening import resolved_workspace
from greenroom.actors.sessions import Rewound
from greenroom.protocol.gateway import (
    MAX_LISTED,
    ArchiveSession,
    AssessMove,
    Compact,
    CompactResult,
    ForkSession,
    ImportedThread,
    ImportLegacy,
    ImportResult,
    MoveAll,
    MovedAll,
    MoveImpact,
    MoveSample,
    MoveSession,
    Nothing,
    OneSession,
    RestoredFile,
    Rewind,
    RewindResult,
    SessionRef,
    Settings,
    Undone,
)

from ._calls_sessions import fill, item_of
from ._ports import EnginePort, Handler

_TITLE_CHARS: Final = 200


async def _fork(engine: EnginePort, asked: ForkSession) -> OneSession:
    made = await engine.fork_session(
        asked.session_id, through=asked.through, rounds=asked.rounds
    )
    return await item_of(engine, made.id)


async def _archive(engine: EnginePort, asked: ArchiveSession) -> OneSession:
    await engine.archive_session(asked.session_id, archived=asked.archived)
    return await item_of(engine, asked.session_id)


async def _move(engine: EnginePort, asked: MoveSession) -> Settings:
    return Settings(await engine.move_session(asked.session_id, asked.agent))


async def _assess_move(engine: EnginePort, asked: AssessMove) -> MoveImpact:
    impact = await engine.assess_move(asked.agent)
    return MoveImpact(
        moved=impact.moved,
        deleted=impact.deleted,
        blocked=impact.blocked,
        samples=tuple(
            MoveSample(session_id=of, title=title[:_TITLE_CHARS], blocked=blocked)
            for of, title, blocked in impact.samples
        ),
    )


async def _move_all(engine: EnginePort, asked: MoveAll) -> MovedAll:
    moved = await engine.move_sessions(asked.agent, asked.target)
    return MovedAll(moved.moved, moved.deleted)


async def _delete(engine: EnginePort, asked: SessionRef) -> Nothing:
    await engine.delete_session(asked.session_id)
    return Nothing()


async def _rewind(engine: EnginePort, asked: Rewind) -> RewindResult:
    session = engine.session(asked.session_id)
    done = await session.rewind(asked.through, files=asked.files, dry_run=asked.dry_run)
    return RewindResult(
        through=done.through,
        count=len(done.messages),
        messages=done.messages[:MAX_LISTED],
        files=_files(done),
        commands=done.commands,
        done=done.done,
    )


def _files(done: Rewound) -> tuple[RestoredFile, ...]:
    files = [
        RestoredFile(path=f.path, action=f.action, reason=f.reason, diff=f.diff)
        for f in done.files[:MAX_LISTED]
    ]
    shown = len(fill(files))
    # Where diffs are too long for a frame, the last ones are left out.
    return (
        *files[:shown],
        *(msgspec.structs.replace(file, diff=None) for file in files[shown:]),
    )


async def _clear(engine: EnginePort, asked: SessionRef) -> Nothing:
    await engine.session(asked.session_id).clear()
    return Nothing()


async def _compact(engine: EnginePort, asked: Compact) -> CompactResult:
    done = await engine.session(asked.session_id).compact(asked.focus)
    return CompactResult(
        outcome=done.outcome,
        why=done.why,
        tokens_before=done.before,
        tokens_after=done.after,
    )


async def _undo_compaction(engine: EnginePort, asked: SessionRef) -> Undone:
    return Undone(await engine.session(asked.session_id).undo_compaction())


async def _import(engine: EnginePort, asked: ImportLegacy) -> ImportResult:
    file = Path(asked.path)
    if asked.dry_run:
        done = await engine.imports.survey(file)
    else:
        workspace = await resolved_workspace(asked.workspace)
        done = await engine.imports.take_over(file, workspace)
    return ImportResult(
        total=len(done.threads),
        threads=tuple(
            ImportedThread(
                id=thread.id,
                title=thread.title[:_TITLE_CHARS],
                messages=thread.messages,
                outcome=thread.outcome,
                reason=thread.reason[:_TITLE_CHARS],
            )
            for thread in done.threads[:MAX_LISTED]
        ),
        problem_count=done.problem_count,
        problems=done.problems,
    )


LIVES: Final[Mapping[str, Handler]] = {
    "_greenroom/session/fork": _fork,
    "_greenroom/session/archive": _archive,
    "_greenroom/session/move": _move,
    "_greenroom/session/assess_move": _assess_move,
    "_greenroom/session/move_all": _move_all,
    "_greenroom/session/delete": _delete,
    "_greenroom/session/rewind": _rewind,
    "_greenroom/session/clear": _clear,
    "_greenroom/session/compact": _compact,
    "_greenroom/session/undo_compaction": _undo_compaction,
    "_greenroom/legacy/import": _import,
}
