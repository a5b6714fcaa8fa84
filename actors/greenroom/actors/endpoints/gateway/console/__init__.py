"""The console: one page in a browser, served by the gateway at ``/``."""

from __future__ import annotations

from ._files import (
    FILES as FILES,
    HEADERS as HEADERS,
    PageFile as PageFile,
    load_page as load_page,
)
