"""Text from elsewhere, made safe for a terminal.

A terminal obeys control characters: text of a model, a tool or a file could move the
cursor over what was printed, retitle the window or fill the clipboard. Nothing that
came from outside is printed without passing here.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

# C0 without tab and line feed, DEL and C1; what turns the direction of text or is not
# seen at all, which can make one command look like another; line breaks that only
# some programs see; lone surrogates, which can't be written at all.
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_PICTURES: Final = 0x2400


def harmless(text: str) -> str:
    """Return *text* with each control character replaced by a visible one.

    Tabs and line feeds stay; a carriage return before a line feed goes.
    """
    return _CONTROL.sub(_visible, text.replace("\r\n", "\n"))


def one_line(text: str, limit: int = 200) -> str:
    """Return *text* harmless, on one line, cut to *limit* characters."""
    # Cut before joining: a huge text is not walked to show its beginning.
    joined = " ".join(harmless(text[: 4 * limit]).split())
    if len(joined) <= limit and len(text) <= 4 * limit:
        return joined
    return joined[: limit - 1] + "…"


def json_line(value: Any) -> str:  # noqa: ANN401 - any value msgspec can encode
    """Return *value* as one line of JSON that is harmless on a terminal too."""
    text = msgspec.json.encode(value).decode()
    return _CONTROL.sub(_escaped, text) + "\n"


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(_PICTURES + code)
    return "␡" if code == 0x7F else "\ufffd"


# Valid in JSON: msgspec has escaped C0, so what is left stands inside of strings.
def _escaped(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
