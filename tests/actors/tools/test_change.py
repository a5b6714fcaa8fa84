"""The write and edit tools: exact, atomic, shown before they happen."""

from __future__ import annotations

import os
import stat

import pytest
from hypothesis import given, strategies as st
from kit.operations import FakeOperation, builtin, call, check, picture

from greenroom.actors.tools import Needs, ToolRefused
from greenroom.actors.tools.builtin._change import excerpt_diff, replace_text
from greenroom.protocol import Diff, Location


async def test_a_write_says_what_it_would_do_and_does_nothing_yet(context):
    path = str(context.workspace / "src" / "a.py")
    needs = await check("write", context, path="src/a.py", content="é")
    assert needs == Needs(
        permission="write src/a.py",
        title="write src/a.py",
        kind="edit",
        locations=(Location(path),),
        diffs=(Diff(path, "é", None),),
        detail="new file, 2 bytes",
    )
    assert picture(context.workspace) == {}


async def test_a_write_makes_the_folders_on_its_way(context):
    result = await call("write", context, path="a/b/c.txt", content="x\n")
    assert (context.workspace / "a/b/c.txt").read_text() == "x\n"
    assert result.text == "a/b/c.txt: new file, 2 bytes"
    assert not result.is_error


async def test_a_write_over_a_file_shows_both_sides_and_keeps_the_mode(context):
    path = context.workspace / "run.sh"
    path.write_text("old")
    path.chmod(0o751)
    needs = await check("write", context, path="run.sh", content="new")
    assert needs.diffs == (Diff(str(path), "new", "old"),)
    await call("write", context, path="run.sh", content="new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    assert os.listdir(context.workspace) == ["run.sh"]


async def test_a_new_file_gets_the_mode_that_the_umask_leaves(context):
    mask = os.umask(0o027)
    try:
        await call("write", context, path="x", content="")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((context.workspace / "x").stat().st_mode) == 0o640


async def test_a_binary_file_that_is_written_over_is_not_shown(context):
    (context.workspace / "x").write_bytes(b"\xff\x00")
    needs = await check("write", context, path="x", content="text")
    assert needs.detail == "4 bytes, in place of 2 that can't be shown"


async def test_no_name_of_a_file_can_dress_up_what_is_asked(context):
    name = "a\nallow \x1b[2K\u202egpj.exe  b"
    needs = await check("write", context, path=name, content="")
    assert needs.permission == "write a�allow �[2K�gpj.exe  b"
    command = await check("shell", context, command="ls\x1b[8m; rm -rf \u202e/")
    assert command.permission == "run a command: ls�[8m; rm -rf �/"


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"])
async def test_text_that_is_none_is_refused(context, text):
    (context.workspace / "x").write_text("old")
    with pytest.raises(ToolRefused, match=r"NUL|surrogate"):
        await check("write", context, path="x", content=text)
    with pytest.raises(ToolRefused, match=r"NUL|surrogate"):
        await check("edit", context, path="x", old_text="old", new_text=text)


async def test_a_failed_write_leaves_the_old_file_and_no_other(context):
    path = context.workspace / "x"
    path.write_text("old")

    def vanish():
        # What stands in the way of the new content's temporary file.
        operation_file = f".greenroom-{operation.id.hash[:32]}.tmp"
        (context.workspace / operation_file).mkdir()

    operation = FakeOperation(context, on_dispatch=vanish)
    result = await builtin("write").run({"path": "x", "content": "new"}, operation)
    assert result.is_error
    assert "file exists" in result.text
    assert path.read_text() == "old"


async def test_a_read_only_file_is_not_replaced(context):
    if os.geteuid() == 0:
        pytest.skip("root may write everything")
    path = context.workspace / "x"
    path.write_text("old")
    path.chmod(0o444)
    result = await call("write", context, path="x", content="new")
    assert result.is_error
    assert path.read_text() == "old"


async def test_an_edit_replaces_exactly_one_place(context):
    path = context.workspace / "x"
    path.write_text("one\ntwo\nthree\n")
    arguments = {"path": "x", "old_text": "two", "new_text": "2"}
    needs = await check("edit", context, **arguments)
    assert needs.permission == "edit x"
    assert needs.diffs == (Diff(str(path), "one\n2\nthree\n", "one\ntwo\nthree\n"),)
    assert path.read_text() == "one\ntwo\nthree\n"
    result = await call("edit", context, **arguments)
    assert path.read_text() == "one\n2\nthree\n"
    assert result.text == "x: 1 place, line 2"
    assert result.diffs == needs.diffs


async def test_an_edit_is_judged_again_when_it_runs(context):
    path = context.workspace / "x"
    path.write_text("one two")
    arguments = {"path": "x", "old_text": "two", "new_text": "2"}
    await check("edit", context, **arguments)
    path.write_text("one two two")
    operation = FakeOperation(context)
    with pytest.raises(ToolRefused, match="2 times"):
        await builtin("edit").run(arguments, operation)
    assert operation.order == []
    assert path.read_text() == "one two two"


async def test_a_file_changed_between_dispatch_and_edit_is_not_overwritten(context):
    path = context.workspace / "x"
    path.write_text("one two")

    def interfere() -> None:
        path.write_text("another's work")

    operation = FakeOperation(context, on_dispatch=interfere)
    arguments = {"path": "x", "old_text": "two", "new_text": "2"}
    result = await builtin("edit").run(arguments, operation)
    assert result.is_error
    assert "changed by another" in result.text
    assert picture(context.workspace).keys() == {"x"}
    assert path.read_text() == "another's work"


@pytest.mark.parametrize(
    ("text", "old", "new", "everywhere", "becomes", "lines"),
    [
        ("a b a", "a", "c", True, "c b c", [1, 1]),
        ("a\r\nb\r\n", "a\nb", "x\ny", False, "x\r\ny\r\n", [1]),
        ("a\r\nb\r\n", "b", "x\ny", False, "a\r\nx\r\ny\r\n", [2]),
        ("a\r\nb\n", "a\r\nb", "x", False, "x\n", [1]),
        ("a\nb\na\nb\n", "a\nb\n", "", True, "", [1, 3]),
        ("aaaa", "aa", "b", True, "bb", [1, 1]),
        ("x\n\n\ny", "\n\n\ny", "", False, "x", [1]),
        ("héé", "éé", "e", False, "he", [1]),
        ("a.b", ".", r"\g<0>", False, r"a\g<0>b", [1]),
    ],
)
def test_replacing(text, old, new, everywhere, becomes, lines):
    assert replace_text(text, old, new, everywhere=everywhere) == (becomes, lines)


@pytest.mark.parametrize(
    ("text", "old", "new", "problem"),
    [
        ("a b a", "a", "c", r"in the file 2 times \(lines 1, 1\)"),
        ("a\n" * 9, "a", "c", r"9 times \(lines 1, 2, 3, 4, 5, …\)"),
        ("a", "a", "a", "changes nothing"),
        ("a\r\nb\r\n", "a\n", "a\r\n", "changes nothing"),
        ("\n  if x:\n", "if x:\n\tpass", "", "line 2 has its first line, so white"),
        ("def frobnicate():\n", "def frobnicat():", "", "nearest is line 1: 'def frob"),
        ("abc", "xyz", "", "read the file again"),
        ("", "x", "", "not in the file"),
    ],
)
def test_what_can_not_be_replaced_says_why(text, old, new, problem):
    with pytest.raises(ToolRefused, match=problem):
        replace_text(text, old, new, everywhere=False)


@given(
    st.text("ab\n", max_size=30),
    st.text("ab\n", min_size=1, max_size=4),
    st.text("ab\r\n", max_size=4),
)
def test_replacing_agrees_with_counting(text, old, new):
    try:
        replaced, lines = replace_text(text, old, new, everywhere=True)
    except ToolRefused:
        assert old == new or old not in text
        return
    assert replaced == text.replace(old, new)
    assert len(lines) == text.count(old)
    named = [text.split("\n")[line - 1] for line in lines]
    assert all(old.split("\n")[0] in line for line in named)


@pytest.mark.parametrize(
    ("data", "problem"),
    [(b"\xff two", "not UTF-8"), (b"two" + b"x" * (2 << 20), "more than 2097152")],
)
async def test_files_that_an_edit_would_damage_are_refused(context, data, problem):
    (context.workspace / "x").write_bytes(data)
    with pytest.raises(ToolRefused, match=problem):
        await check("edit", context, path="x", old_text="two", new_text="2")


async def test_an_edit_of_what_is_not_there_points_to_write(context):
    with pytest.raises(ToolRefused, match="write makes new files"):
        await check("edit", context, path="x", old_text="a", new_text="b")
    with pytest.raises(ToolRefused, match="length >= 1"):
        await check("edit", context, path="x", old_text="", new_text="b")


def test_the_diff_of_a_long_text_shows_the_lines_around_the_change():
    before = [f"line {number}\n" for number in range(10_000)]
    after = [*before[:5_000], "changed\n", *before[5_001:]]
    diff = excerpt_diff("x", "".join(before), "".join(after))
    assert diff.old_text == "".join(before[4_997:5_004])
    assert diff.new_text == "".join(after[4_997:5_004])


@pytest.mark.parametrize("old", [None, "", "a" * 99_999])
def test_no_diff_is_longer_than_its_bound(old):
    diff = excerpt_diff("x", old, "b" * 500_000)
    assert len(diff.new_text) < 33_000
    assert len(diff.old_text or "") < 33_000
