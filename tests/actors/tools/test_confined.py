"""Paths: whatever they say, nothing outside the workspace is read or written."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings, strategies as st
from kit.operations import (
    FakeOperation,
    builtin,
    call,
    check,
    make_context,
    picture,
)

from greenroom.actors.tools import ToolRefused

PATH_TOOLS = {
    "read": {},
    "write": {"content": "new"},
    "edit": {"old_text": "secret", "new_text": "new"},
    "list": {},
    "find": {"pattern": "*"},
    "grep": {"pattern": "secret"},
}


@pytest.fixture
def outside(context) -> Path:
    """A folder beside the workspace with a secret, and ways to it."""
    folder = context.workspace.parent / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text("secret")
    (context.workspace / "link").symlink_to(folder)
    (context.workspace / "file-link").symlink_to(folder / "secret.txt")
    (context.workspace / "relative-link").symlink_to("../outside/secret.txt")
    (context.workspace / "dangling").symlink_to(folder / "not-yet")
    (context.workspace / "loop").symlink_to("loop")
    (context.workspace / "a").mkdir()
    (context.workspace / "a" / "up").symlink_to("..")
    return folder


HOSTILE = [
    "",
    "..",
    "../outside/secret.txt",
    "a/../../outside/secret.txt",
    "{outside}",
    "{outside}/secret.txt",
    "/etc/passwd",
    "//etc/passwd",
    "/proc/self/environ",
    "/dev/zero",
    "link",
    "link/secret.txt",
    "file-link",
    "relative-link",
    "dangling",
    "a/up/link/secret.txt",
    "a/up/../outside/secret.txt",
    "loop",
    "loop/x",
    "~/x",
    "~root/x",
    "x\x00y",
    "\x00",
    "x\ud800",
    "x" * 5_000,
    "x" * 300,
    "{workspace}x/secret.txt",
]


@pytest.mark.parametrize("name", PATH_TOOLS)
@pytest.mark.parametrize("path", HOSTILE)
async def test_hostile_paths_are_refused_at_both_doors(context, outside, name, path):
    path = path.replace("{outside}", str(outside))
    path = path.replace("{workspace}", str(context.workspace))
    before = picture(context.workspace.parent)
    arguments, operation = {"path": path, **PATH_TOOLS[name]}, FakeOperation(context)
    with pytest.raises(ToolRefused) as caught:
        await builtin(name).precheck(arguments, context)
    str(caught.value).encode()
    assert len(str(caught.value)) < 500
    with pytest.raises(ToolRefused):
        await builtin(name).run(arguments, operation)
    assert operation.order == []
    assert picture(context.workspace.parent) == before


async def test_a_refusal_says_that_a_link_leads_out(context, outside):
    with pytest.raises(ToolRefused, match=r"'link/secret.txt' leads out .* link"):
        await check("read", context, path="link/secret.txt")
    with pytest.raises(ToolRefused, match="leads out of the workspace;"):
        await check("read", context, path="../outside/secret.txt")


async def test_links_that_stay_inside_are_followed_and_kept(context, outside):
    (context.workspace / "b.txt").write_text("old")
    (context.workspace / "a" / "in").symlink_to("../b.txt")
    (context.workspace / "fresh").symlink_to("a/made.txt")
    assert (await call("read", context, path="a/in")).text == "old"
    assert (await call("read", context, path="a/up/b.txt")).text == "old"
    await call("write", context, path="a/in", content="new")
    await call("write", context, path="fresh", content="made")
    assert (context.workspace / "a" / "in").is_symlink()
    assert (context.workspace / "b.txt").read_text() == "new"
    assert (context.workspace / "a" / "made.txt").read_text() == "made"


async def test_absolute_paths_inside_are_fine_by_every_name_of_the_workspace(context):
    (context.workspace / "x").write_text("text")
    alias = context.workspace.parent / "alias"
    alias.symlink_to(context.workspace)
    for path in (context.workspace / "x", alias / "x", "./x", "y/../x"):
        assert (await call("read", context, path=str(path))).text == "text"


@pytest.mark.parametrize("name", ["read", "edit", "grep", "write"])
async def test_what_is_no_file_is_refused_and_nothing_hangs(context, name):
    os.mkfifo(context.workspace / "pipe")
    (context.workspace / "folder").mkdir()
    kinds = {"pipe": "a named pipe"}
    if name != "grep":
        kinds |= {"folder": "a folder", ".": "a folder"}
    with socket.socket(socket.AF_UNIX) as server, trio.fail_after(2):
        # By a relative name: the limit for a socket's path is short.
        folder = os.open(context.workspace, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)
        for path, kind in (kinds | {"socket": "a socket"}).items():
            with pytest.raises(ToolRefused, match=f"is {kind}"):
                await check(name, context, path=path, **PATH_TOOLS[name])


async def test_a_device_in_the_workspace_is_refused(context):
    try:
        os.mknod(context.workspace / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("making a device needs root")
    with pytest.raises(ToolRefused, match="is a device"):
        await check("read", context, path="null")


async def test_a_file_in_the_place_of_a_folder_is_refused(context):
    (context.workspace / "file").write_text("x")
    for name, arguments in PATH_TOOLS.items():
        with pytest.raises(ToolRefused, match="not a directory"):
            await check(name, context, path="file/x", **arguments)
    with pytest.raises(ToolRefused, match="not a directory"):
        await check("list", context, path="file")
    with pytest.raises(ToolRefused, match="is a folder"):
        await check("write", context, path="new/", content="x")


def swap(context, outside, old: str) -> None:
    """Put a link to the outside where *old* was judged to be."""
    path = context.workspace / old
    path.rename(context.workspace / "moved")
    path.symlink_to(outside / "secret.txt" if path.suffix else outside)


@pytest.mark.parametrize("swapped", ["deep", "deep/secret.txt", "deep/er"])
@pytest.mark.parametrize("name", PATH_TOOLS)
async def test_a_link_swapped_in_after_judging_is_not_followed(
    context, outside, name, swapped
):
    (context.workspace / "deep" / "er").mkdir(parents=True)
    for folder in ("deep", "deep/er"):
        (context.workspace / folder / "secret.txt").write_text("secret inside")
    path = "deep/er" if name in ("list", "find") else "deep/er/secret.txt"
    if swapped == "deep/secret.txt":
        path = "deep" if name in ("list", "find") else swapped
    operation = FakeOperation(
        context, on_dispatch=lambda: swap(context, outside, swapped)
    )
    before = picture(outside)
    result = await builtin(name).run({"path": path, **PATH_TOOLS[name]}, operation)
    assert operation.order == ["dispatch"]
    assert picture(outside) == before
    if name == "find" or (name == "list" and path == "deep"):
        assert not result.is_error
    elif name == "grep":
        # The search goes on in the folder that was judged, wherever it is now.
        found = "nothing found" if swapped == path else "secret inside"
        assert found in result.text
    else:
        assert result.is_error
        assert "link" in result.text or "directory" in result.text


@pytest.mark.parametrize("name", ["read", "grep", "write"])
async def test_a_pipe_swapped_in_after_judging_is_not_waited_for(context, name):
    path = context.workspace / "secret"
    path.write_text("x")

    def swap_in() -> None:
        path.unlink()
        os.mkfifo(path)

    operation = FakeOperation(context, on_dispatch=swap_in)
    with trio.fail_after(5):
        arguments = {"path": "secret", **PATH_TOOLS[name]}
        result = await builtin(name).run(arguments, operation)
    assert result.is_error or "left out" in result.text
    assert path.is_fifo()


@settings(max_examples=150)
@given(
    st.lists(
        st.sampled_from(
            ["..", ".", "a", "up", "link", "file-link", "dangling", "b.txt", "", "~"]
        )
        | st.text(max_size=4),
        max_size=6,
    ),
    st.booleans(),
)
def test_no_path_writes_or_reads_outside(tmp_path_factory, names, absolute):
    base = tmp_path_factory.mktemp("any")
    context = make_context(base)
    outside = base / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (context.workspace / "a").mkdir()
    (context.workspace / "a" / "up").symlink_to("..")
    (context.workspace / "link").symlink_to(outside)
    (context.workspace / "file-link").symlink_to(outside / "secret.txt")
    (context.workspace / "dangling").symlink_to(outside / "new")
    before = picture(outside)
    path = ("/" if absolute else "") + "/".join(names)

    async def use() -> None:
        for name in ("write", "read", "edit", "list"):
            arguments = {"path": path, **PATH_TOOLS[name]}
            with suppress(ToolRefused):
                result = await builtin(name).run(arguments, FakeOperation(context))
                assert not result.text.startswith("secret")

    trio.run(use)
    assert picture(outside) == before
    # What files were before is kept beside the session.
    assert set(os.listdir(base)) - {"scratch"} == {"outside", "workspace"}
