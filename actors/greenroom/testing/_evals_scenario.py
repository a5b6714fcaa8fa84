"""A scenario: what the model and the tools do, and what the turn must come to.

A scenario is data. The model's part is a script of the rehearsal provider, the tools'
part is what each answers; everything between the two is greenroom itself. A file of
scenarios is TOML or JSON with one list, ``scenarios``. It is decoded strictly: a key
that does not exist is an error, because an expectation that is silently ignored is
worse than none.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from greenroom.actors.providers import Cue
from greenroom.protocol import GreenroomError

MAX_FILE_BYTES: Final = 4 << 20
"""Of a file of scenarios: as much as a script may have."""

MAX_SCENARIOS: Final = 1_000
MAX_REPLIES: Final = 1_000
"""Replies of one script; a run ends after 128 tool calls, a limit far below."""

MAX_PROMPT_CHARS: Final = 100_000

TurnStatus = Literal["completed", "aborted", "error", "paused"]

_Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")]
_Count = Annotated[int, Meta(ge=0, le=1 << 53)]
_Positive = Annotated[int, Meta(ge=1, le=1_000_000)]
_Fragments = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=10_000)], ...],
    Meta(max_length=100),
]


class ScenarioError(GreenroomError):
    """Scenarios can't be used; the message says where and why."""

    code = "scenario_error"
    hint = "mend the scenarios; docs/guides/evals.md shows their form"


class ScriptedTool(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """A tool that takes any object, has no effect and answers as it is told."""

    name: _Name
    result: str = "done"
    """What the model reads."""
    error: str | None = None
    """Raised instead, after the dispatch: the tool has failed."""
    permission: str | None = None
    """What the user is asked before each call; ``None``: nothing."""
    read_only: bool = False
    """Calls of one reply overlap if all of them are of such tools."""


class UserAnswer(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """What the user answers when asked."""

    answer: Literal["grant", "deny", "reply", "other"]
    text: Annotated[str, Meta(max_length=20_000)] = ""
    """The reason of ``deny``, the words of ``reply``."""


class ExpectedUsage(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Tokens of the whole turn; what is left out must not be known either."""

    input: _Count
    output: _Count
    total: _Count
    cache_read: _Count | None = None
    cache_write: _Count | None = None


class Expectation(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """How the turn must end. What is left out is not looked at."""

    status: TurnStatus
    """What was returned; that the store says the same is looked at in any case."""
    stop_reason: str | None = None
    """A paused turn has none; its run was stopped for an interaction."""
    code: str | None = None
    """Of the error, for programs."""
    rounds: _Count | None = None
    """Replies of the model."""
    tool_calls: _Count | None = None
    """Calls that began to run."""
    failed_tools: _Count | None = None
    """Calls that were dispatched and failed."""
    permission_requests: _Count | None = None
    """How often the user was asked whether a call may run."""
    usage: ExpectedUsage | Literal["unknown"] | None = None
    """``unknown``: the provider must have told none."""
    text: _Fragments = ()
    """Each must be in what the model said."""
    tool_text: _Fragments = ()
    """Each must be in a tool's result that the model read."""
    error_text: _Fragments = ()
    """Each must be in the error."""


class CallBudget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a turn may spend at most."""

    rounds: _Count
    tool_calls: _Count


class Scenario(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """One turn of one session, offline, with everything that happens in it."""

    id: _Name
    script: Annotated[tuple[tuple[Cue, ...], ...], Meta(max_length=MAX_REPLIES)]
    """What the model does, reply after reply."""
    expect: Expectation
    tools: Annotated[tuple[ScriptedTool, ...], Meta(max_length=100)] = ()
    budget: CallBudget | None = None
    """``None``: the turn may spend what it spends."""
    prompt: Annotated[str, Meta(min_length=1, max_length=MAX_PROMPT_CHARS)] = "go"
    system_prompt: Annotated[str, Meta(max_length=MAX_PROMPT_CHARS)] = ""
    permission_mode: Literal["default", "auto_approve", "full_access"] = "full_access"
    max_rounds: _Positive | None = None
    """The limit of rounds; ``None``: there is none."""
    answers: Annotated[tuple[UserAnswer, ...], Meta(max_length=100)] = ()
    """What the user answers, in order; a question beyond them stays open."""
    stop_before_event: _Positive | None = None
    """The user stops the turn before this event of the model, counted from 1."""
    steer_waiting: bool = False
    """Whether newer input waits from the beginning."""


class _ScenarioFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scenarios: Annotated[
        tuple[Scenario, ...], Meta(min_length=1, max_length=MAX_SCENARIOS)
    ]


def load_scenarios(path: Path) -> tuple[Scenario, ...]:
    """Return the scenarios of a ``.toml`` or ``.json`` file.

    Raises:
        ScenarioError: it can't be read, is too large, or is not what it should be.
    """
    try:
        content = _read_bounded(path)
        found = _decode(content, path.suffix.lower())
    except OSError as exc:
        raise ScenarioError(f"{path}: can't be read: {exc.strerror}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ScenarioError(f"{path}: is not valid TOML: {exc}") from exc
    except RecursionError as exc:
        raise ScenarioError(f"{path}: is nested too deeply") from exc
    except (msgspec.MsgspecError, ValueError) as exc:
        raise ScenarioError(f"{path}: {exc}") from exc
    check_scenarios(found)
    return found


def check_scenarios(scenarios: Sequence[Scenario]) -> None:
    """Refuse scenarios, or tools of one scenario, that have the same name.

    Raises:
        ScenarioError: two of them have.
    """
    twice = _twice(scenario.id for scenario in scenarios)
    if twice is not None:
        raise ScenarioError(f"several scenarios have the id {twice!r}")
    for scenario in scenarios:
        twice = _twice(tool.name for tool in scenario.tools)
        if twice is not None:
            raise ScenarioError(
                f"several tools of scenario {scenario.id!r} have the name {twice!r}"
            )


def _twice(names: Iterable[str]) -> str | None:
    return next((each for each, count in Counter(names).items() if count > 1), None)


def _decode(content: bytes, suffix: str) -> tuple[Scenario, ...]:
    match suffix:
        case ".json":
            return msgspec.json.decode(content, type=_ScenarioFile).scenarios
        case ".toml":
            values: dict[str, Any] = tomllib.loads(content.decode())
            return msgspec.convert(values, _ScenarioFile).scenarios
        case _:
            raise ValueError("the name of the file must end in .toml or .json")


# Opened without waiting: a pipe in the file's place must not hang anybody.
def _read_bounded(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("is not a regular file")
        content = stream.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"is larger than {MAX_FILE_BYTES} bytes")
    return content
