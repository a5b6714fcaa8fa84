"""Files inside a folder, and only there, whatever the path says.

A path is judged by where it really leads: `locate` resolves every symbolic link and
refuses what ends outside. What it returns is a `Place`: a root and the names below
it, none of them a link. Opening walks down from the root one name at a time and
follows no link, so a folder or file that is swapped for a link between judging and
opening is an error, not a way out.

All functions block; they run in a worker thread. Every problem is a `ToolRefused`
that says what and why.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TypeVar, TypeVarTuple, Unpack, final

import attrs
import trio

from greenroom.protocol import Location, safe_text

from .._excerpt import one_line, printable
from .._port import ToolRefused, ToolResult

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MAX_PATH: Final = 4_096
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FOLDER: Final = _OPEN | os.O_DIRECTORY
# Without O_NONBLOCK, opening a pipe put in a file's place would wait for a writer.
_OPEN_FILE: Final = _OPEN | os.O_NONBLOCK | os.O_NOCTTY

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
)


@final
@attrs.frozen
class Place:
    """Where a path really leads: names below a root, none of them a link."""

    root: Path
    parts: tuple[str, ...]
    shown: str
    """How to name it to the model and the user, on one line."""

    @property
    def path(self) -> str:
        """The absolute path, safe to store."""
        return safe_text(str(self.root.joinpath(*self.parts)))

    @property
    def location(self) -> Location:
        """The place, for those who watch."""
        return Location(self.path)

    @property
    def parent(self) -> Place:
        """The folder it lies in."""
        return attrs.evolve(self, parts=self.parts[:-1])


@final
@attrs.frozen
class Version:
    """Which content a file had, as far as its metadata tells."""

    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, status: os.stat_result) -> Version:
        """Return the version that *status* describes."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


async def in_thread(fn: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
    """Return ``fn(*args)``, which only reads: on cancel it is left to itself."""
    return await trio.to_thread.run_sync(fn, *args, abandon_on_cancel=True)


async def effect(
    fn: Callable[[Unpack[Ts]], ToolResult], *args: *Ts, changes: bool = False
) -> ToolResult:
    """Return ``fn(*args)``, done after the dispatch.

    A refusal there comes too late to be one: it is an error result. What *changes*
    something is waited for even when cancelled, so that it is known what happened.
    """
    try:
        return await trio.to_thread.run_sync(
            partial(fn, *args), abandon_on_cancel=not changes
        )
    except ToolRefused as refused:
        return ToolResult(str(refused), is_error=True)


def locate(raw: str, *roots: Path) -> Place:
    """Return where *raw* leads; relative paths start at the first of *roots*.

    Raises:
        ToolRefused: it leads out of all *roots*, is no path, or the first root is gone.
    """
    shown = one_line(raw, 200)
    _check_text(raw, shown)
    if not os.path.isdir(roots[0]):
        raise ToolRefused("the workspace is not there any more")
    lexical = os.path.normpath(os.path.join(roots[0], raw))
    real = os.path.realpath(os.path.join(roots[0], raw))
    for root in roots:
        root = Path(os.path.realpath(root))
        if real == str(root) or real.startswith(f"{str(root).rstrip('/')}/"):
            parts = Path(real).relative_to(root).parts
            inside = "/".join(parts) or "."
            name = inside if root == roots[0] else real
            return Place(root, parts, printable(name))
    how = " through a symbolic link" if _within(lexical, roots) else ""
    raise ToolRefused(
        f"the path {shown!r} leads out of the workspace{how}; "
        "only what lies in the workspace can be used"
    )


def _check_text(raw: str, shown: str) -> None:
    if not raw:
        raise ToolRefused("the path is empty; '.' is the workspace itself")
    if len(raw) > _MAX_PATH:
        raise ToolRefused(f"the path has {len(raw)} characters, more than {_MAX_PATH}")
    if "\x00" in raw:
        raise ToolRefused(f"the path {shown!r} holds a NUL character")
    if raw.startswith("~"):
        raise ToolRefused(
            f"the path {shown!r} starts with '~', which is not expanded; "
            "give a path relative to the workspace"
        )
    try:
        raw.encode()
    except UnicodeEncodeError:
        raise ToolRefused(f"the path {shown!r} holds a lone surrogate") from None


def _within(path: str, roots: tuple[Path, ...]) -> bool:
    return any(Path(path).is_relative_to(root) for root in roots)


@contextmanager
def opened_folder(place: Place, *, make: bool = False) -> Generator[int]:
    """Open the folder at *place* for the body, made with its parents if *make*."""
    descriptor = open_folder(place, make=make)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_folder(place: Place, *, make: bool = False) -> int:
    """Return a descriptor of the folder at *place*, for the caller to close."""
    with problems_of(place):
        descriptor = os.open(place.root, _OPEN_FOLDER)
        for part in place.parts:
            try:
                inner = _open_part(descriptor, part, make)
            finally:
                os.close(descriptor)
            descriptor = inner
        return descriptor


def _open_part(descriptor: int, part: str, make: bool) -> int:
    try:
        return os.open(part, _OPEN_FOLDER, dir_fd=descriptor)
    except FileNotFoundError:
        if not make:
            raise
    # If somebody was faster, what it is shows when it is opened.
    with suppress(FileExistsError):
        os.mkdir(part, dir_fd=descriptor)
    return os.open(part, _OPEN_FOLDER, dir_fd=descriptor)


@contextmanager
def opened_file(place: Place) -> Generator[BinaryIO]:
    """Open the regular file at *place* for reading; anything else is refused."""
    with opened_folder(place.parent) as folder, problems_of(place):
        descriptor = os.open(place.parts[-1], _OPEN_FILE, dir_fd=folder)
        with open(descriptor, "rb") as file:
            _check_kind(os.fstat(descriptor), place)
            yield file


def status(place: Place) -> os.stat_result | None:
    """Return the status of the regular file at *place*, ``None`` if there is nothing.

    Raises:
        ToolRefused: there is something else than a regular file.
    """
    with problems_of(place):
        try:
            # No link is followed: were one put in the way, this tells of the link.
            found = os.stat(place.root.joinpath(*place.parts), follow_symlinks=False)
        except FileNotFoundError:
            return None
    _check_kind(found, place)
    return found


def status_in(folder: int, place: Place) -> os.stat_result:
    """Return the status of the regular file called as *place* in the open *folder*."""
    if not place.parts:
        raise ToolRefused(f"{place.shown!r} is a folder")
    found = os.stat(place.parts[-1], dir_fd=folder, follow_symlinks=False)
    _check_kind(found, place)
    return found


def replace_file(
    place: Place, data: bytes, token: str, expected: Version | None = None
) -> None:
    """Make *data* the content of the file at *place*, all of it or nothing.

    Written beside it under a name made of *token*, forced to disk and renamed over
    it; the mode is kept. Folders on the way are made.

    Raises:
        ToolRefused: it can't be written, or is no longer *expected*.
    """
    name, hidden = place.parts[-1], _hidden(token)
    with opened_folder(place.parent, make=True) as folder, problems_of(place):
        mode = _mode_to_keep(folder, place)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(hidden, flags, 0o666, dir_fd=folder)
        try:
            with open(descriptor, "wb") as file:
                if mode is not None:
                    os.fchmod(descriptor, mode)
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            if expected and Version.of(status_in(folder, place)) != expected:
                raise ToolRefused(f"{place.shown!r} has just been changed by another")
            os.replace(hidden, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(hidden, dir_fd=folder)
            raise
        os.fsync(folder)


def drop_leftover(place: Place, token: str) -> None:
    """Remove what a `replace_file` with *token* left that died with its process."""
    gone = suppress(FileNotFoundError)
    with opened_folder(place.parent) as folder, problems_of(place), gone:
        os.unlink(_hidden(token), dir_fd=folder)


def _hidden(token: str) -> str:
    return f".greenroom-{token}.tmp"


def _mode_to_keep(folder: int, place: Place) -> int | None:
    try:
        found = status_in(folder, place)
    except FileNotFoundError:
        return None
    # A rename would get past a file's own write protection.
    if not os.access(place.parts[-1], os.W_OK, dir_fd=folder):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return stat.S_IMODE(found.st_mode)


def _check_kind(found: os.stat_result, place: Place) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    kind = next((word for test, word in _KINDS if test(found.st_mode)), "a device")
    raise ToolRefused(f"{place.shown!r} is {kind}, not a file")


@contextmanager
def problems_of(place: Place) -> Generator[None]:
    """Turn the system's errors of the body into refusals about *place*."""
    try:
        yield
    except OSError as exc:
        raise ToolRefused(f"{place.shown!r}: {problem(exc)}") from exc


def problem(exc: OSError) -> str:
    """Return what went wrong, in words."""
    if exc.errno == errno.ELOOP:
        return "a symbolic link is in the way"
    return (exc.strerror or str(exc)).lower()
