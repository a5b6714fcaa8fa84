"""What an image file is, from its first bytes. Pure; trusts no length in the file."""

from __future__ import annotations

import struct

HEAD_BYTES = 262_144
"""How much of a file is worth handing in: a JPEG's size lies behind its previews."""


def describe_image(head: bytes) -> str | None:
    """Return format and size of the image that starts with *head*, or ``None``."""
    for name, magic, size in (
        ("PNG", b"\x89PNG\r\n\x1a\n", _png),
        ("JPEG", b"\xff\xd8\xff", _jpeg),
        ("GIF", b"GIF87a", _gif),
        ("GIF", b"GIF89a", _gif),
    ):
        if head.startswith(magic):
            return _described(name, size(head))
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return _described("WebP", _webp(head))
    return None


def _described(name: str, size: tuple[int, int] | None) -> str:
    return f"{name} image" + (f", {size[0]} by {size[1]} pixels" if size else "")


def _unpack(form: str, head: bytes, offset: int) -> tuple[int, ...] | None:
    try:
        return struct.unpack_from(form, head, offset)
    except struct.error:
        return None


def _pair(form: str, head: bytes, offset: int) -> tuple[int, int] | None:
    found = _unpack(form, head, offset)
    return (found[0], found[1]) if found else None


def _png(head: bytes) -> tuple[int, int] | None:
    return _pair(">II", head, 16)


def _gif(head: bytes) -> tuple[int, int] | None:
    return _pair("<HH", head, 6)


def _jpeg(head: bytes) -> tuple[int, int] | None:
    # Segments: a marker, then a length that counts itself. The frame header (C0 to
    # CF, but not C4, C8 and CC) holds height and width.
    at = 2
    while (found := _unpack(">BBH", head, at)) and found[0] == 0xFF:
        _, marker, length = found
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            size = _pair(">HH", head, at + 5)
            return (size[1], size[0]) if size else None
        at += 2 + max(length, 2)
    return None


def _webp(head: bytes) -> tuple[int, int] | None:
    kind = head[12:16]
    if kind == b"VP8 ":
        size = _pair("<HH", head, 26)
        return (size[0] & 0x3FFF, size[1] & 0x3FFF) if size else None
    if kind == b"VP8L" and (bits := _unpack("<I", head, 21)):
        return (bits[0] & 0x3FFF) + 1, (bits[0] >> 14 & 0x3FFF) + 1
    if kind == b"VP8X" and len(head) >= 30:
        width, height = head[24:27], head[27:30]
        return int.from_bytes(width, "little") + 1, int.from_bytes(height, "little") + 1
    return None
