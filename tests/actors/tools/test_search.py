"""The list, find and grep tools: order, bounds, links, and expressions without end."""

from __future__ import annotations

import os
import re

import pytest
import trio
from hypothesis import given, strategies as st
from kit.operations import MADE, FakeOperation, builtin, call, check, processes_of
from trio.testing import MockClock, wait_all_tasks_blocked

from greenroom.actors.tools import ToolRefused
from greenroom.actors.tools.builtin._search_worker import matches, read_lines, segments


@pytest.fixture
def tree(context):
    """Some folders and files, with a link that makes a loop and one that leads out."""
    for path in ("a/b/deep.py", "a/one.py", "two.py", "two.txt", ".git/config", ".env"):
        (context.workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (context.workspace / path).write_text(f"first\nthis is {path}\n")
    (context.workspace / "a" / "loop").symlink_to("..")
    outside = context.workspace.parent / "outside"
    outside.mkdir()
    (outside / "secret.py").write_text("this is secret")
    (context.workspace / "out").symlink_to(outside)
    (context.workspace / "out.py").symlink_to(outside / "secret.py")
    os.mkfifo(context.workspace / "pipe.py")
    return context


async def test_a_folder_is_listed_by_name_with_kinds_and_sizes(tree):
    (tree.workspace / "new\nline\udcff").touch()
    result = await call("list", tree)
    assert result.text.split("\n") == [
        ".env  19 bytes",
        ".git/",
        "a/",
        "new\\nline�  0 bytes",
        f"out -> {tree.workspace.parent}/outside",
        f"out.py -> {tree.workspace.parent}/outside/secret.py",
        "pipe.py  0 bytes",
        "two.py  21 bytes",
        "two.txt  22 bytes",
    ]


async def test_an_empty_folder_and_a_missing_one(context):
    (context.workspace / "empty").mkdir()
    assert (await call("list", context, path="empty")).text == "(the folder is empty)"
    for name, arguments in [("list", {}), ("find", {"pattern": "*"})]:
        with pytest.raises(ToolRefused, match="no such file"):
            await check(name, context, path="missing", **arguments)
    with pytest.raises(ToolRefused, match="'missing' does not exist"):
        await check("grep", context, path="missing", pattern="x")


@pytest.mark.slow
async def test_a_big_folder_is_listed_in_part_and_says_so(context):
    for number in range(1_005):
        (context.workspace / f"{number:05}").touch()
    result = await call("list", context)
    assert result.kept is not None
    lines = result.kept.read_text().split("\n")
    assert lines[999] == "00999  0 bytes"
    assert lines[1_000] == "[the first 1000 of 1005 entries; find narrows it]"


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        (
            {"pattern": "*.py"},
            ["a/b/deep.py", "a/one.py", "out.py", "pipe.py", "two.py"],
        ),
        ({"pattern": "a/*.py"}, ["a/one.py"]),
        ({"pattern": "a/**/*.py"}, ["a/b/deep.py", "a/one.py"]),
        ({"pattern": "./a/*"}, ["a/b/", "a/loop/", "a/one.py"]),
        ({"pattern": "[!a-z]*"}, [".env", ".git/"]),
        ({"pattern": "*.py", "path": "a/b"}, ["a/b/deep.py"]),
        ({"pattern": "config"}, ["[nothing found]"]),
        (
            {"pattern": "*", "limit": 2},
            [".env", ".git/", "[there is more; narrow the path or the pattern]"],
        ),
    ],
)
async def test_finding(tree, arguments, paths):
    result = await call("find", tree, **arguments)
    assert result.text.split("\n") == paths
    assert not result.is_error


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            {"pattern": r"this is .*py$"},
            [
                "two.py:2: this is two.py",
                "a/one.py:2: this is a/one.py",
                "a/b/deep.py:2: this is a/b/deep.py",
            ],
        ),
        ({"pattern": "THIS IS t", "ignore_case": True, "glob": "*.txt"}, ["two.txt"]),
        ({"pattern": "first", "path": "a/one.py"}, ["a/one.py:1: first"]),
        ({"pattern": "is", "path": "a/b"}, ["a/b/deep.py:2: this is a/b/deep.py"]),
        ({"pattern": "is", "glob": "a/*.py"}, ["a/one.py:2: this is a/one.py"]),
        ({"pattern": "secret"}, ["[nothing found"]),
        ({"pattern": "is", "limit": 1}, [".env:2: this is .env", "[there is more"]),
    ],
)
async def test_grepping(tree, arguments, lines):
    result = await call("grep", tree, **arguments)
    found = [
        line for line in result.text.split("\n") if not re.match(r"\[\d binary", line)
    ]
    assert len(found) == len(lines)
    assert all(one.startswith(other) for one, other in zip(found, lines, strict=True))
    assert not result.is_error


async def test_what_grep_left_out_is_counted(tree):
    (tree.workspace / "binary").write_bytes(b"this\x00is")
    with (tree.workspace / "huge").open("wb") as file:
        file.truncate(9 << 20)
    result = await call("grep", tree, pattern="this is t")
    # Both, the pipe and a link; nothing hung and nothing was followed.
    assert "[4 binary, very big or unreadable files were left out]" in result.text


async def test_odd_content_becomes_one_safe_line_each(context):
    (context.workspace / "x").write_bytes(b"a\xffb\x0bc\r\n" + b"y" * 999 + b"match")
    result = await call("grep", context, pattern="b|match")
    first, second = result.text.split("\n")
    assert first == "x:1: a�b\x0bc"
    assert second.startswith("x:2: …yyy")
    assert second.endswith("match…")
    assert len(second) < 320


@pytest.mark.parametrize("pattern", ["(", "*", "(?P<x", "(" * 500, r"\8"])
async def test_what_is_no_regular_expression_is_refused(context, pattern):
    operation = FakeOperation(context)
    with pytest.raises(ToolRefused, match="no regular expression"):
        await check("grep", context, pattern=pattern)
    with pytest.raises(ToolRefused, match="no regular expression"):
        await builtin("grep").run({"pattern": pattern}, operation)
    assert operation.order == []


async def test_an_expression_that_warns_is_no_problem(context):
    (context.workspace / "x").write_text("[[a")
    assert (await call("grep", context, pattern="[[a]a")).text == "x:1: [[a"


@pytest.mark.slow
async def test_an_expression_without_end_is_ended_and_the_loop_goes_on(
    context, mock_clock: MockClock
):
    mock_clock.rate = 10
    for name in ("a", "z"):
        (context.workspace / name).write_text(name * 50 + "!")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await trio.sleep(1)
            ticks += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        result = await call("grep", context, pattern="a!|(z+)+$")
        nursery.cancel_scope.cancel()
    assert ticks >= 8
    found, note = result.text.split("\n")
    assert found == f"a:1: {'a' * 50}!"
    assert "took more than 10 s; this is what was found until then" in note


async def test_a_search_that_finds_nothing_in_its_time_is_an_error(
    context, autojump_clock: MockClock
):
    # The clock jumps as soon as only the search is waited for.
    (context.workspace / "x").write_text("z" * 50 + "!")
    result = await call("grep", context, pattern="(z+)+$")
    assert result.is_error
    assert "took more than 10 s" in result.text


@pytest.mark.slow
async def test_a_cancelled_search_leaves_no_process(context):
    (context.workspace / "x").write_text("z" * 50 + "!")
    operation = FakeOperation(context)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(builtin("grep").run, {"pattern": "(z+)+$"}, operation)
            await operation.dispatched.wait()
            await wait_all_tasks_blocked(0.1)
            assert list(processes_of(operation.id.hash))
            nursery.cancel_scope.cancel()
    assert list(processes_of(*MADE)) == []


async def test_deep_folders_are_searched_to_a_depth(context):
    folder = os.open(context.workspace, os.O_RDONLY)
    for _ in range(70):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    result = await call("find", context, pattern="d")
    assert result.text.count("\n") == 64
    assert result.text.endswith("[there is more; narrow the path or the pattern]")


@given(st.lists(st.sampled_from(["a", "b", "ab", ".x"]), min_size=1, max_size=5))
def test_every_path_fits_itself_and_the_widest_patterns(names):
    path = "/".join(names)
    for pattern in (f"./{path}", "**/*", "**", "**/**/**", f"**/{names[-1]}", "*"):
        assert matches(path, segments(pattern))
    assert not matches(path, segments(f"./{path}/x"))
    assert not matches(path, segments(f"./y/{path}"))


def test_no_glob_takes_for_ever():
    assert not matches("a" * 250, segments("*a" * 100 + "b"))
    assert not matches("/".join("a" * 60), segments("**/a/" * 20 + "b"))


def test_lines_are_counted_as_editors_do(tmp_path):
    (tmp_path / "x").write_bytes(b"a\x0cb\xe2\x80\xa8c\rd\r\ne")
    assert read_lines(str(tmp_path / "x"), -100) == ["a\x0cb\u2028c\rd", "e"]
