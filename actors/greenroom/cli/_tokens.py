"""Where a token is kept: in a file that nobody else may read, or in a variable."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ._exit import CliError

TOKEN_VARIABLE: Final = "GREENROOM_TOKEN"
MAX_TOKEN_FILE_BYTES: Final = 1 << 20


def client_token(file: Path | None, environ: Mapping[str, str]) -> str | None:
    """Return the token to show: the first of *file*, else that of the environment.

    Raises:
        CliError: the file can't be used, or there is none in it.
    """
    if file is None:
        return environ.get(TOKEN_VARIABLE) or None
    for line in read_secret(file).splitlines():
        words = line.split()
        if words and not words[0].startswith("#"):
            return words[0]
    raise CliError(f"there is no token in {file}", hint="write it on a line of its own")


def read_secret(file: Path) -> str:
    """Return what is in a file that only its owner may read.

    Raises:
        CliError: others may, or it can't be read.
    """
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise CliError(
                    f"others may read {file}, so it holds no secret",
                    hint=f"chmod 600 {file}",
                )
            data = opened.read(MAX_TOKEN_FILE_BYTES + 1)
        if len(data) > MAX_TOKEN_FILE_BYTES:
            raise CliError(f"{file} is too large for a file of tokens")
        return data.decode()
    except (OSError, ValueError) as exc:
        # Not the exception, which may quote what it could not decode.
        what = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise CliError(f"{file} can't be read: {what}") from None
