"""The read tool: windows of lines, bounds, binary files and images."""

from __future__ import annotations

import os
import struct
import tracemalloc

import pytest
from hypothesis import given, strategies as st
from kit.operations import FakeOperation, builtin, call, check

from greenroom.actors.tools import Needs, ToolRefused
from greenroom.actors.tools.builtin._image import describe_image
from greenroom.protocol import Location


def put(context, data: bytes | str, name: str = "file"):
    path = context.workspace / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


async def test_reading_needs_no_permission_and_says_where(context):
    path = put(context, "x")
    assert await check("read", context, path="file") == Needs(
        None, "read file", "read", (Location(str(path)),)
    )


async def test_a_file_is_read_after_its_dispatch_and_as_it_is_then(context):
    path = put(context, "before")
    operation = FakeOperation(context, on_dispatch=lambda: put(context, "after"))
    result = await builtin("read").run({"path": "file"}, operation)
    assert result.text == "after"
    path.unlink()
    operation = FakeOperation(context)
    with pytest.raises(ToolRefused, match="does not exist"):
        await builtin("read").run({"path": "file"}, operation)
    assert operation.order == []


@pytest.mark.parametrize(
    ("window", "text"),
    [
        ({}, "1\n2\n3\n4"),
        ({"offset": 3}, "3\n4"),
        ({"limit": 2}, "1\n2\n[more lines follow; go on with offset=3]"),
        ({"offset": 2, "limit": 3}, "2\n3\n4"),
        ({"offset": 4, "line_numbers": True}, "     4  4"),
    ],
)
async def test_a_window_says_whether_more_follows(context, window, text):
    put(context, "1\n2\n3\n4\n")
    assert (await call("read", context, path="file", **window)).text == text


async def test_an_offset_past_the_end_is_an_error_that_says_the_length(context):
    put(context, "1\n2\n")
    result = await call("read", context, path="file", offset=9)
    assert result.is_error
    assert "has only 2 lines" in result.text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "(the file is empty)"),
        (b"a\r\nb\r\n", "a\nb"),
        (b"\xff\xfe", "��"),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", "a\n\ufeffb"),
        (b"caf\xc3", "caf�"),
        (b"x" * 9_000 + b"\n\x00y", None),
        ("a\x1bb\x0cc\u2028d".encode(), "a\x1bb\x0cc\u2028d"),
    ],
)
async def test_what_is_read_can_be_stored(context, data, text):
    put(context, data)
    result = await call("read", context, path="file")
    if text is None:
        assert result.text.endswith("\n�y")
    else:
        assert result.text == text


async def test_a_very_long_line_is_cut_with_its_length(context):
    put(context, "a\n" + "x" * 50_000 + "\nb\n")
    lines = (await call("read", context, path="file")).text.split("\n")
    assert lines[0::2] == ["a", "b"]
    assert lines[1] == "x" * 2_000 + " [… line cut, it has 50001 bytes]"


async def test_long_reads_stop_at_the_bound_and_say_how_to_go_on(context):
    put(context, "x" * 999 + "\n" + ("y" * 999 + "\n") * 99)
    text = (await call("read", context, path="file")).text
    assert len(text) < 51_000
    assert text.endswith("[more lines follow; go on with offset=51]")
    rest = await call("read", context, path="file", offset=51)
    assert len(rest.text) == 999 * 50 + 49


async def test_binary_is_refused_and_not_shown(context):
    put(context, b"\x7fELF\x00\x01")
    result = await call("read", context, path="file")
    assert result.is_error
    assert result.text == "'file' is binary (6 bytes), not text"


@pytest.mark.slow
async def test_a_gigantic_file_costs_neither_memory_nor_for_ever(context):
    path = context.workspace / "file"
    with path.open("wb") as file:
        file.write(b"first\n" + b"x" * 9_000)
        file.truncate(4 << 30)
    tracemalloc.start()
    result = await call("read", context, path="file")
    assert result.text.startswith("first\nxxx")
    assert result.text.endswith("[the rest lies beyond 67108864 bytes; it is not read]")
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
    os.truncate(path, 0)


PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR" + struct.pack(">II", 640, 480)
JPEG = b"\xff\xd8\xff\xe0\x00\x04xx\xff\xc4\x00\x03x\xff\xc2\x00\x11\x08" + struct.pack(
    ">HH", 48, 64
)
IMAGES = [
    (PNG, "PNG image, 640 by 480 pixels"),
    (PNG[:20], "PNG image"),
    (b"GIF89a" + struct.pack("<HH", 3, 4), "GIF image, 3 by 4 pixels"),
    (b"GIF87a", "GIF image"),
    (JPEG, "JPEG image, 64 by 48 pixels"),
    (b"\xff\xd8\xff\xe0\x00\x00" * 9, "JPEG image"),
    (
        b"RIFF----WEBPVP8X----\0\0\0\0\x0f\x00\x00\x1f\x00\x00",
        "WebP image, 16 by 32 pixels",
    ),
    (
        b"RIFF----WEBPVP8L----\x2f" + struct.pack("<I", 99 | 49 << 14),
        "WebP image, 100 by 50 pixels",
    ),
    (
        b"RIFF----WEBPVP8 ----123\x9d\x01\x2a" + struct.pack("<HH", 7, 8),
        "WebP image, 7 by 8 pixels",
    ),
    (b"RIFF----WEBP", "WebP image"),
]


@pytest.mark.parametrize(("head", "description"), IMAGES)
async def test_images_are_described(context, head, description):
    put(context, head)
    result = await call("read", context, path="file")
    assert result.text.startswith(f"{description}, {len(head)} bytes")


@given(st.sampled_from([head for head, _ in IMAGES]), st.binary(max_size=64))
def test_no_image_head_is_too_hostile(head, rest):
    for cut in (4, 12, len(head)):
        describe_image(head[:cut] + rest)


async def test_kept_output_can_be_read_and_searched_but_not_changed(context):
    context.scratch.mkdir()
    kept = context.scratch / "kept.txt"
    kept.write_text("long\n")
    assert (await call("read", context, path=str(kept))).text == "long"
    found = await call("grep", context, path=str(kept), pattern="lo")
    assert found.text == f"{kept}:1: long"
    for name, arguments in [
        ("write", {"content": "x"}),
        ("edit", {"old_text": "long", "new_text": "x"}),
    ]:
        with pytest.raises(ToolRefused, match="leads out"):
            await check(name, context, path=str(kept), **arguments)
