"""The files that the results of a copied message name, as those of its new session.

A result that was too long is a preview which names a file in the folder of its session.
A session reads no other's folder, and a fork outlives its source: so it has copies, and
its results name these. What else lies in the folder stays there.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio

from greenroom.protocol import MessageRecord, StorageError, ToolCallBlock

_NAME: Final = r"[\w-]{1,100}\.txt"


async def with_own_files(
    records: Sequence[MessageRecord], old: Path, new: Path
) -> list[MessageRecord]:
    """Copy what *records* name in the folder *old* to *new*, and name it there.

    What is not in *old* any more is named as before. Nothing is cut off by a cancel.

    Raises:
        StorageError: a file can't be copied.
    """
    named = {name for record in records for name in _names(record, old)}
    if not named:
        return list(records)
    there = await trio.to_thread.run_sync(_copy_all, sorted(named), old, new)
    return [_renamed(record, old, new, there) for record in records]


def _names(record: MessageRecord, folder: Path) -> Iterator[str]:
    for block in record.blocks:
        if isinstance(block, ToolCallBlock) and block.response is not None:
            yield from _named_in(folder).findall(block.response)


def _renamed(
    record: MessageRecord, old: Path, new: Path, names: Collection[str]
) -> MessageRecord:
    def moved(found: re.Match[str]) -> str:
        return str(new / found[1]) if found[1] in names else found[0]

    blocks = tuple(
        msgspec.structs.replace(
            block, response=_named_in(old).sub(moved, block.response)
        )
        if isinstance(block, ToolCallBlock) and block.response is not None
        else block
        for block in record.blocks
    )
    return msgspec.structs.replace(record, blocks=blocks)


def _named_in(folder: Path) -> re.Pattern[str]:
    return re.compile(re.escape(f"{folder}/") + f"({_NAME})")


#### In a thread


def _copy_all(names: Sequence[str], old: Path, new: Path) -> frozenset[str]:
    try:
        return frozenset(name for name in names if _copy(old / name, new / name))
    except OSError as exc:
        raise StorageError(
            f"the output of a tool can't be copied to {str(new)!r}:"
            f" {exc.strerror or exc}",
            hint="free some space, or fork through an earlier message",
        ) from exc


def _copy(old: Path, new: Path) -> bool:
    # A tool's command may have put anything there: only a file is copied, no link is
    # followed, and what has become a pipe meanwhile holds nobody up.
    if old.is_symlink() or not old.is_file():
        return False
    os.makedirs(new.parent, mode=0o700, exist_ok=True)
    with (
        open(_opened(old, os.O_RDONLY | os.O_NONBLOCK), "rb") as source,
        open(_opened(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as copy,
    ):
        shutil.copyfileobj(source, copy)
    return True


def _opened(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
