"""How the command ends: one number for each reaction a caller can have."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from greenroom.client import (
    AddressError,
    CallError,
    ConnectionLostError,
    GatewayClosedError,
    GatewayProtocolError,
    GatewayRefusedError,
    SilentGatewayError,
    UnreachableGatewayError,
)
from greenroom.engine import (
    SessionHeldError,
    SessionNotFoundError,
    TurnRefusedError,
    WorkspaceError,
)
from greenroom.protocol import (
    AgentNotFoundError,
    AgentRefusedError,
    AgentUnavailableError,
    GreenroomError,
    SkillError,
    StorageError,
)
from greenroom.storage.legacy import LegacyError


class ExitCode(IntEnum):
    """What a script can tell from the exit status; documented in ``--help``."""

    OK = 0
    RUN_FAILED = 1
    """Also a problem that doctor found, and a scenario that failed."""
    USAGE = 2
    SESSION_HELD = 3
    UNANSWERED = 4
    STATE = 5
    GATEWAY = 6
    INTERRUPTED = 130
    """128 plus SIGINT, as shells have it; also where SIGTERM or SIGHUP interrupted:
    whoever called does the same about it. Only ``serve`` is meant to end by SIGTERM."""


EXIT_CODE_HELP: Final = """\
exit status:
  0    it worked
  1    the run ended in an error, a scenario failed, or doctor found a problem
  2    wrong usage or configuration
  3    the session is held by another engine
  4    a permission or question could not be answered (no terminal, no --yes)
  5    the state folder can't be used
  6    the gateway can't be reached, or does not let you in
  130  interrupted: Ctrl-C, a terminal that is gone, or SIGTERM (0 for serve)
"""


_OF_CALLS: Final = {
    "session_held": ExitCode.SESSION_HELD,
    "session_not_found": ExitCode.USAGE,
    "agent_not_found": ExitCode.USAGE,
    "workspace_error": ExitCode.USAGE,
    "forbidden": ExitCode.GATEWAY,
}
"""What the code of a gateway's error stands for."""


class CliError(GreenroomError):
    """A command can't go on; ``exit_code`` says which kind of reason it is."""

    code = "cli_error"

    def __init__(
        self,
        message: str,
        *,
        exit_code: ExitCode = ExitCode.USAGE,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        if hint is not None:
            self.hint = hint


def exit_code_for(error: GreenroomError) -> ExitCode:
    """Return the exit status that *error* stands for."""
    match error:
        case CliError():
            return error.exit_code
        case SessionHeldError():
            return ExitCode.SESSION_HELD
        case AddressError():
            return ExitCode.USAGE
        case SessionNotFoundError() | TurnRefusedError() | WorkspaceError():
            return ExitCode.USAGE
        case AgentNotFoundError() | AgentRefusedError() | AgentUnavailableError():
            return ExitCode.USAGE
        case SkillError() if error.code != "skill_io":
            return ExitCode.USAGE
        case LegacyError():  # of a file that was named, not of the state folder
            return ExitCode.USAGE
        case StorageError():
            return ExitCode.STATE
        case CallError():
            return _OF_CALLS.get(error.code, ExitCode.RUN_FAILED)
        case (
            UnreachableGatewayError()
            | GatewayRefusedError()
            | GatewayClosedError()
            | GatewayProtocolError()
            | SilentGatewayError()
            | ConnectionLostError()
        ):
            return ExitCode.GATEWAY
        case _:
            return ExitCode.RUN_FAILED
