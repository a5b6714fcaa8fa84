"""What the page is made of, and under which paths it is served.

A fixed table: a path that is not in it is no file, so nothing of a request ever
reaches the file system. The files are read once, when the gateway starts.

No file names another origin, and `HEADERS` keep it so: no inline script or style, no
string that becomes markup, no frame around the page. What a model, a tool or a user
wrote is text to it, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Final

import attrs

_HTML: Final = "text/html; charset=utf-8"
_CSS: Final = "text/css; charset=utf-8"
_SCRIPT: Final = "text/javascript; charset=utf-8"

FILES: Final[Mapping[str, tuple[str, str]]] = {
    "/": ("index.html", _HTML),
    "/console/console.css": ("console.css", _CSS),
    "/console/main.js": ("main.js", _SCRIPT),
    "/console/dom.js": ("dom.js", _SCRIPT),
    "/console/wire.js": ("wire.js", _SCRIPT),
    "/console/model.js": ("model.js", _SCRIPT),
    "/console/prose.js": ("prose.js", _SCRIPT),
    "/console/blocks.js": ("blocks.js", _SCRIPT),
    "/console/transcript.js": ("transcript.js", _SCRIPT),
    "/console/dock.js": ("dock.js", _SCRIPT),
    "/console/inspector.js": ("inspector.js", _SCRIPT),
    "/console/sessions.js": ("sessions.js", _SCRIPT),
    "/console/dialogs.js": ("dialogs.js", _SCRIPT),
    "/console/keyboard.js": ("keyboard.js", _SCRIPT),
    "/console/asks.js": ("asks.js", _SCRIPT),
    "/console/inbox.js": ("inbox.js", _SCRIPT),
    "/console/composer.js": ("composer.js", _SCRIPT),
    "/console/toasts.js": ("toasts.js", _SCRIPT),
    "/console/rewind.js": ("rewind.js", _SCRIPT),
    "/console/agents.js": ("agents.js", _SCRIPT),
    "/console/images.js": ("images.js", _SCRIPT),
}
"""The path of each file, its name in this folder, and its content type."""

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
"""Sent with every file of the page."""


@attrs.frozen
class PageFile:
    """One file, ready to be sent."""

    content_type: str
    body: bytes


def load_page() -> Mapping[str, PageFile]:
    """Return every file of the page by the path under which it is served."""
    folder = files(__name__.rpartition(".")[0])
    return {
        path: PageFile(content_type, folder.joinpath(name).read_bytes())
        for path, (name, content_type) in FILES.items()
    }
