"""Faults that explain themselves need no traceback; bugs keep theirs."""

from __future__ import annotations

import errno
import json
import logging

import pytest

from greenroom.cli._faults import is_only, is_without_room, known_errors, log_to_stderr
from greenroom.protocol import DiskFullError, GreenroomError

FULL = DiskFullError("the disk is full")
ODD = GreenroomError("an odd \x1b[2J thing")


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (FULL, [FULL]),
        (ExceptionGroup("x", [FULL, ExceptionGroup("y", [ODD])]), [FULL, ODD]),
        (ValueError("a bug"), []),
        (ExceptionGroup("x", [FULL, ValueError("a bug")]), []),
        (BaseExceptionGroup("x", [FULL, KeyboardInterrupt()]), []),
    ],
)
def test_only_what_is_ours_as_a_whole_is_explained(error, known):
    assert known_errors(error) == known


@pytest.mark.parametrize(
    ("error", "only"),
    [
        (BrokenPipeError(), True),
        (ExceptionGroup("x", [ExceptionGroup("y", [BrokenPipeError()])]), True),
        (ExceptionGroup("x", [BrokenPipeError(), ValueError("a bug")]), False),
        (ValueError("a bug"), False),
    ],
)
def test_a_group_of_one_kind_is_that_kind(error, only):
    assert is_only(error, BrokenPipeError) == only


NO_ROOM = OSError(errno.ENOSPC, "no space left")


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (NO_ROOM, True),
        (ExceptionGroup("x", [ExceptionGroup("y", [NO_ROOM])]), True),
        (ExceptionGroup("x", [NO_ROOM, ValueError("a bug")]), False),
        (OSError(errno.EIO, "broken"), False),
    ],
)
def test_a_full_disk_is_told_from_a_bug(error, full):
    assert is_without_room(error) == full


def logged(error: Exception, capsys: pytest.CaptureFixture[str]) -> str:
    log_to_stderr()
    log_to_stderr()
    try:
        raise error
    except Exception:
        logging.getLogger("greenroom.kernel").error("an actor failed", exc_info=True)
    return capsys.readouterr().err


def test_a_known_fault_is_logged_once_without_traceback_and_harmless(capsys):
    said = logged(ExceptionGroup("x", [FULL, ODD]), capsys)
    assert said.count("an actor failed") == 1
    assert "the disk is full" in said
    assert "Traceback" not in said
    assert "\x1b" not in said


def test_a_bug_is_logged_with_its_traceback(capsys):
    assert "Traceback" in logged(ValueError("a bug"), capsys)


def test_a_log_line_is_json_when_that_is_wanted_and_tells_no_secret(capsys):
    secret = "sk-live-abcdefghijklmnopqrstuvwxyz"
    try:
        log_to_stderr("json")
        logging.getLogger("greenroom.kernel").error("no %s", secret)
        told = json.loads(capsys.readouterr().err)
        assert (told["level"], told["message"]) == ("error", "no [redacted]")
    finally:
        log_to_stderr()
    logging.getLogger("greenroom.kernel").error("no %s", secret)
    assert capsys.readouterr().err == "greenroom: no [redacted]\n"
