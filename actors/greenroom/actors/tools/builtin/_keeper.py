"""The program that runs one script and sees to it that nothing of it stays behind.

It stands between the engine and the shell, in a session of its own, run by path with
nothing but the standard library:

    python -I -S _keeper.py SHELL SCRIPT_FD STATUS_FD GRACE

stdin is the *control* pipe: its end, whether the engine closed it or died of
SIGKILL, means that everything is to end. stdout and stderr go to the script.
STATUS_FD gets ``started PID`` and, when the leader ends, ``exited CODE`` (negative: a
signal). The script is read from SCRIPT_FD, so no command line holds its text, and
``pkill -f`` in it finds no wrapper.

On Linux the keeper is the subreaper of all it started: a process that calls setsid
or loses its parent becomes its child, not init's, and is found. Elsewhere it ends
the leader's process group, and a process that left the group is out of reach.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NoReturn

_LINUX = sys.platform == "linux"
_SET_DEATH_SIGNAL = 1
_SET_CHILD_SUBREAPER = 36
_KILL_SECONDS = 1.5
_PAUSE = 0.005
_IGNORED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


def main(shell: str, script: int, status: int, grace: float) -> NoReturn:
    """Run the script, tell how it ended, end everything when told to.

    The exit code is not 0 if something could not be ended.
    """
    _set(_SET_CHILD_SUBREAPER, 1)
    os.set_inheritable(status, False)
    wake = _wake_on_child()
    leader = os.fork()
    if not leader:
        _become(shell, script)
    _let_go_of(script)
    _tell(status, f"started {leader}")
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        for pid, code in _reaped():
            if pid == leader:
                _tell(status, f"exited {code}")
        if 0 in ready:
            break
    _end_everything(leader, grace)
    sys.exit(bool(_left(leader)))


def _set(option: int, value: int) -> None:
    if _LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _ignore(number: int, frame: object) -> None:
    """Handle a signal that is only there to be woken by."""


def _wake_on_child() -> int:
    """Return a descriptor that is readable after a child has ended."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    return read


def _become(shell: str, script: int) -> NoReturn:
    """Turn this forked process into the shell, the leader of a new session."""
    try:
        os.setsid()
        _set(_SET_DEATH_SIGNAL, signal.SIGKILL)
        for number in (*_IGNORED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.set_inheritable(script, True)
        os.execv(shell, [shell, f"/dev/fd/{script}"])
    except OSError as exc:
        os.write(2, f"can't start {shell}: {exc.strerror}\n".encode())
    finally:
        os._exit(127)


def _let_go_of(script: int) -> None:
    # The output must end when the last process of the script lets go of it.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)
    os.close(script)


def _tell(status: int, line: str) -> None:
    # If the engine is gone, the control pipe says so too.
    with suppress(BrokenPipeError):
        os.write(status, f"{line}\n".encode())


def _reaped() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def _end_everything(leader: int, grace: float) -> None:
    """End all that is left: politely, and after *grace* seconds by force."""
    asked: set[int] = set()
    give_up = time.monotonic() + grace
    while (left := _left(leader)) and time.monotonic() < give_up:
        # The leader first: a trap of the script runs before its children are gone.
        for pid in sorted(left - asked, key=lambda pid: (pid != leader, pid)):
            _send(pid, signal.SIGTERM)
            _send(pid, signal.SIGCONT)
        asked |= left
        time.sleep(_PAUSE)
    give_up = time.monotonic() + _KILL_SECONDS
    while (left := _left(leader)) and time.monotonic() < give_up:
        for group in {_group_of(pid) for pid in left} - {0, os.getpgrp()}:
            _send(-group, signal.SIGKILL)
        for pid in left:
            _send(pid, signal.SIGKILL)
        time.sleep(_PAUSE)


def _left(leader: int) -> set[int]:
    """Return what still runs; elsewhere than on Linux, the leader's group or none."""
    for _ in _reaped():
        pass
    if _LINUX:
        return _descendants(os.getpid())
    return {-leader} if _send(-leader, 0) else set()


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid) if pid > 0 else 0
    except OSError:
        return 0


def _descendants(root: int) -> set[int]:
    """Return all living descendants of *root*, as /proc tells."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (parent := _parent_of_living(name)):
            children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        born = children.get(waiting.pop(), [])
        found.update(born)
        waiting.extend(born)
    return found


def _parent_of_living(name: str) -> int:
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            # The name in parentheses may hold anything, parentheses too.
            state, parent, *_ = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if state == b"Z" else int(parent)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
