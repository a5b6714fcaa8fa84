"""The folder of packages: one folder for each Skill, and what is known of it.

The folder is looked at whenever somebody asks, and a package is read again only when
its ``SKILL.md`` has changed: that is all the watching there is, once for all agents
(SKL-01). A package is a folder, not a link to one; hidden folders are ours. Everything
blocks.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

import attrs

from greenroom.protocol import (
    MAX_SKILL_TEXT,
    MAX_SKILLS,
    SkillError,
    SkillText,
    is_skill_name,
    parse_skill,
)

_LOG: Final = logging.getLogger("greenroom.skills")

SKILL_FILE: Final = "SKILL.md"
BACKUPS: Final = ".backup"
INCOMING: Final = ".incoming"

MAX_FILES: Final = 1_000
MAX_BYTES: Final = 32 << 20
"""Of one package."""

_Signature = tuple[int, int, int]


@attrs.frozen
class Package:
    """A package that can be used."""

    name: str
    """Of its folder, which is what counts."""
    root: Path
    text: SkillText


@final
@attrs.define(eq=False)
class Packages:
    """The packages below *root*."""

    root: Path
    reads: int = attrs.field(default=0, init=False)
    """How often a ``SKILL.md`` was read."""
    _known: dict[str, tuple[_Signature, Package | None]] = attrs.field(
        factory=dict[str, "tuple[_Signature, Package | None]"], init=False
    )

    def look(self) -> dict[str, Package]:
        """Return the packages that are there now and can be used, by name."""
        found: dict[str, tuple[_Signature, Package | None]] = {}
        for name in self.names():
            signature = _signature(self.root / name / SKILL_FILE)
            if signature is None:
                continue
            known = self._known.get(name)
            if known is None or known[0] != signature:
                known = signature, self._read(name)
            found[name] = known
        self._known = found
        return {name: each for name, (_, each) in found.items() if each is not None}

    def names(self) -> list[str]:
        """Return the names of the folders that may be packages, sorted."""
        try:
            with os.scandir(self.root) as entries:
                names = [
                    entry.name
                    for entry in entries
                    if is_skill_name(entry.name) and entry.is_dir(follow_symlinks=False)
                ]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as exc:
            raise failure("the folder of Skills can't be read", exc) from exc
        return sorted(names)[:MAX_SKILLS]

    def _read(self, name: str) -> Package | None:
        self.reads += 1
        try:
            return read_package(self.root / name)
        except SkillError as exc:
            _LOG.warning("Skill %s can't be used: %s", name, exc)
            return None

    #### Changes

    def take_in(self, source: Path, name: str) -> None:
        """Copy *source* to be the package *name*: all of it, or nothing is there.

        Raises:
            SkillError: ``skill_exists``, ``invalid_skill``, ``skill_io``.
        """
        target, hidden = self.root / name, self.root / INCOMING / name
        if os.path.lexists(target):
            raise SkillError(
                "skill_exists",
                f"there is a Skill {name!r} already",
                hint="remove it first, or give the new one another name",
            )
        try:
            remove_tree(hidden)
            copy_tree(source, hidden)
            os.rename(hidden, target)
        except OSError as exc:
            raise failure(f"Skill {name!r} can't be copied", exc) from exc

    def back_up(self, name: str) -> None:
        """Move a package aside.

        Raises:
            SkillError: ``skill_io``.
        """
        backup = self.root / BACKUPS / name
        try:
            backup.parent.mkdir(exist_ok=True)
            remove_tree(backup)
            os.rename(self.root / name, backup)
        except FileNotFoundError:
            # Somebody removed the folder by hand; there is nothing to keep.
            return
        except OSError as exc:
            raise failure(f"Skill {name!r} can't be moved aside", exc) from exc

    def restore(self, name: str) -> None:
        """Move a package back from where `back_up` put it; nothing if none is there."""
        backup, target = self.root / BACKUPS / name, self.root / name
        if os.path.lexists(backup) and not os.path.lexists(target):
            os.rename(backup, target)

    def drop_backup(self, name: str) -> None:
        """Remove what `back_up` moved aside."""
        remove_tree(self.root / BACKUPS / name)

    def drop(self, name: str) -> None:
        """Remove a package at once."""
        remove_tree(self.root / name)

    def backups(self) -> list[str]:
        """Return the names of packages that were moved aside."""
        try:
            return sorted(os.listdir(self.root / BACKUPS))
        except FileNotFoundError:
            return []


def read_package(folder: Path) -> Package:
    """Return the package in *folder*.

    Raises:
        SkillError: ``invalid_skill``, ``skill_io``.
    """
    file = folder / SKILL_FILE
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(file, flags), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise SkillError("invalid_skill", f"{file} is not a regular file")
            content = stream.read(4 * MAX_SKILL_TEXT + 1)
        text = content.decode()
    except UnicodeDecodeError as exc:
        raise SkillError("invalid_skill", f"{file} is not UTF-8") from exc
    except OSError as exc:
        raise failure(f"{file} can't be read", exc) from exc
    return Package(folder.name, Path(os.path.realpath(folder)), parse_skill(text))


def _signature(file: Path) -> _Signature | None:
    try:
        status = file.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


#### Trees


def tree_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield each file below *folder* with its path from there, sorted.

    Raises:
        SkillError: it holds a link or a device, or is too large.
    """
    count, size = 0, 0
    for where, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(where, name))]
        for name in sorted(files) + links:
            file = Path(where) / name
            status = file.lstat()
            if not stat.S_ISREG(status.st_mode):
                raise SkillError(
                    "invalid_skill", f"{name[:80]!r} is a link or no regular file"
                )
            count, size = count + 1, size + status.st_size
            if count > MAX_FILES or size > MAX_BYTES:
                raise SkillError(
                    "invalid_skill",
                    f"a Skill has at most {MAX_FILES} files and {MAX_BYTES} bytes",
                )
            yield str(file.relative_to(folder)), file


def copy_tree(source: Path, target: Path) -> None:
    """Copy the regular files of *source* to the new folder *target*."""
    target.mkdir(parents=True)
    for name, file in tree_files(source):
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy, follow_symlinks=False)
    _sync(target)


def tree_digest(folder: Path) -> str:
    """Return a digest of the content of all files below *folder*, and their names."""
    digest = hashlib.sha256()
    for name, file in tree_files(folder):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{name}\0{content}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def remove_tree(folder: Path) -> None:
    """Remove *folder*, if it is there."""
    shutil.rmtree(folder, ignore_errors=not os.path.lexists(folder))


def _sync(folder: Path) -> None:
    # What a commit will speak of is on disk before it.
    for where, _, files in os.walk(folder, topdown=False):
        for name in (*files, "."):
            descriptor = os.open(Path(where) / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def failure(what: str, exc: OSError) -> SkillError:
    """Return what the system said, as an error of Skills."""
    return SkillError("skill_io", f"{what}: {exc.strerror or exc}")
