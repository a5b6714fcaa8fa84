"""Files that tools changed are put back whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from kit.operations import FakeOperation, builtin

from greenroom.actors.tools import (
    FileChange,
    ToolRefused,
    changes_of,
    file_changes,
    plan_restore,
    restore_files,
)
from greenroom.actors.tools.builtin import _snapshots
from greenroom.actors.tools.builtin._restore import leads_back
from greenroom.protocol import OperationId, RunId


async def change(context, name="write", seq=1, **arguments):
    found, operation = builtin(name), FakeOperation(context, request_seq=seq)
    await found.precheck(arguments, context)
    result = await found.run(arguments, operation)
    assert not result.is_error, result.text
    return operation.id


def plan(context, changes):
    return plan_restore(context.scratch, context.workspace, changes)


def actions(planned):
    return {each.path: each.action for each in planned}


async def test_files_are_put_back_to_what_they_were(context):
    (context.workspace / "old.txt").write_text("one\n")
    os.chmod(context.workspace / "old.txt", 0o640)
    await change(context, path="old.txt", content="two\n", seq=1)
    await change(context, "edit", path="old.txt", old_text="two", new_text="3", seq=2)
    await change(context, path="deep/new.txt", content="new", seq=3)
    changes = file_changes(context.scratch)
    planned = plan(context, changes)
    assert actions(planned) == {"old.txt": "restore", "deep/new.txt": "remove"}
    restore, remove = planned
    assert restore.diff is not None
    assert (restore.diff.old_text, restore.diff.new_text) == ("3\n", "one\n")
    assert remove.diff is not None
    assert (remove.diff.old_text, remove.diff.new_text) == ("new", "")
    assert (context.workspace / "old.txt").read_text() == "3\n"

    restore_files(context.scratch, context.workspace, changes)
    assert (context.workspace / "old.txt").read_text() == "one\n"
    assert (context.workspace / "old.txt").stat().st_mode & 0o777 == 0o640
    assert not (context.workspace / "deep/new.txt").exists()
    assert set(actions(plan(context, changes)).values()) == {"unchanged"}


async def test_only_the_changes_of_some_calls_are_put_back(context):
    first = await change(context, path="a", content="1", seq=1)
    later = [
        await change(context, path="a", content=text, seq=seq)
        for seq, text in enumerate("234", start=2)
    ]
    assert len(changes_of(context.scratch, [first])) == 1
    restore_files(
        context.scratch, context.workspace, changes_of(context.scratch, later)
    )
    assert (context.workspace / "a").read_text() == "1"


@pytest.mark.parametrize("touched", ["changed", "gone", "a link", "a folder"])
async def test_one_file_that_was_changed_since_keeps_all_as_they_are(context, touched):
    await change(context, path="a", content="1", seq=1)
    await change(context, path="b", content="1", seq=2)
    (context.workspace / "c").write_text("was")
    await change(context, path="c", content="1", seq=3)
    file = context.workspace / "c"
    file.unlink()
    if touched == "changed":
        file.write_text("mine")
    elif touched == "a link":
        file.symlink_to(context.workspace / "a")
    elif touched == "a folder":
        file.mkdir()
    done = restore_files(
        context.scratch, context.workspace, file_changes(context.scratch)
    )
    assert actions(done) == {"a": "remove", "b": "remove", "c": "refused"}
    assert (context.workspace / "a").read_text() == "1"
    assert (context.workspace / "b").read_text() == "1"


async def test_what_somebody_wrote_between_two_calls_is_not_lost(context):
    await change(context, path="a", content="1", seq=1)
    (context.workspace / "a").write_text("mine")
    await change(context, path="a", content="2", seq=2)
    (only,) = plan(context, file_changes(context.scratch))
    assert (only.action, only.reason) == ("refused", "it has been changed since")
    # The later call alone can be taken back: that brings mine.
    restore_files(context.scratch, context.workspace, file_changes(context.scratch)[1:])
    assert (context.workspace / "a").read_text() == "mine"


async def test_a_restore_that_was_cut_off_is_done_by_the_next(context, monkeypatch):
    for number, name in enumerate("abc", start=1):
        (context.workspace / name).write_text("was")
        await change(context, path=name, content=f"is {name}", seq=number)
    changes = file_changes(context.scratch)
    real, calls = os.replace, []

    def fails_at_the_second(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise OSError("the disk is gone")
        real(*args, **kwargs)

    monkeypatch.setattr(os, "replace", fails_at_the_second)
    with pytest.raises(ToolRefused, match="the disk is gone"):
        restore_files(context.scratch, context.workspace, changes)
    monkeypatch.undo()
    texts = [(context.workspace / name).read_text() for name in "abc"]
    assert texts == ["was", "is b", "is c"]
    done = restore_files(context.scratch, context.workspace, changes)
    assert actions(done) == {"a": "unchanged", "b": "restore", "c": "restore"}
    texts = [(context.workspace / name).read_text() for name in "abc"]
    assert texts == ["was"] * 3


async def test_what_is_kept_is_bounded_in_size_and_number(context, monkeypatch):
    monkeypatch.setattr(_snapshots, "MAX_CHANGES", 4)
    monkeypatch.setattr(_snapshots, "MAX_KEPT_BYTES", 250)
    monkeypatch.setattr(_snapshots, "MAX_IMAGE_BYTES", 100)
    for number in range(7):
        text = str(number) * 100
        await change(context, path="a", content=text, seq=number + 1)
    changes = file_changes(context.scratch)
    assert [c.operation.request_seq for c in changes] == [4, 5, 6, 7]
    contents = list((context.scratch / "before" / "contents").iterdir())
    assert sum(path.stat().st_size for path in contents) <= 250
    (only,) = plan(context, changes)
    assert only.reason == "what it was is not kept any more"
    (context.workspace / "big").write_text("b" * 101)
    await change(context, path="big", content="small", seq=20)
    (big,) = plan(context, file_changes(context.scratch)[-1:])
    assert big.reason == "what it was is not kept any more"


async def test_a_content_that_was_tampered_with_is_not_put_back(context):
    (context.workspace / "a").write_text("was")
    await change(context, path="a", content="is")
    for path in (context.scratch / "before" / "contents").iterdir():
        path.write_text("evil")
    (only,) = plan(context, file_changes(context.scratch))
    assert only.reason == "what it was is not kept any more"


async def test_a_record_that_names_a_file_elsewhere_is_refused(context, tmp_path):
    operation = OperationId(RunId("r"), 1, "c")
    outside = tmp_path / "outside"
    outside.write_text("theirs")

    def forged(**fields):
        return FileChange(operation=operation, before=None, after="0" * 64, **fields)

    for change in (
        forged(root=str(tmp_path), parts=("outside",)),
        forged(root=str(context.workspace), parts=("..", "outside")),
        forged(root=str(context.workspace), parts=()),
    ):
        (only,) = plan(context, [change])
        assert only.action == "refused"
    assert outside.read_text() == "theirs"


async def test_damaged_records_are_left_out(context):
    await change(context, path="a", content="1")
    folder = context.scratch / "before" / "changes"
    (folder / "000000000000-torn.json").write_text('{"operation":')
    (folder / "stranger").write_text("{}")
    (folder / "000000000002-x.json").mkdir()
    assert [c.path for c in file_changes(context.scratch)] == ["a"]
    await change(context, path="b", content="1", seq=2)
    assert [c.path for c in file_changes(context.scratch)] == ["a", "b"]


async def test_a_change_is_made_though_what_was_can_not_be_kept(context, caplog):
    context.scratch.write_text("a file is in the way")
    await change(context, path="a", content="1")
    assert (context.workspace / "a").read_text() == "1"
    assert "is not kept" in caplog.text
    assert file_changes(context.scratch) == []


def test_a_file_that_somebody_put_back_half_way_is_theirs():
    def step(number, before, after):
        operation = OperationId(RunId("r"), number, "c")
        return FileChange(
            operation=operation, root="/", parts=("f",), before=before, after=after
        )

    changes = [step(1, "a", "b"), step(2, "c", "d")]
    assert not leads_back("b", changes)
    assert leads_back("d", [step(1, "a", "b"), step(2, "b", "d")])
    assert leads_back("b", [step(1, "a", "b"), step(2, "b", "d")])


CONTENTS = st.sampled_from([None, "a", "b", "c"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.booleans(), st.booleans()),
    min_size=1,
    max_size=6,
)


@given(first=CONTENTS, steps=STEPS, others=CONTENTS)
@settings(deadline=None)
def test_a_chain_leads_back_exactly_if_nobody_else_came_between(first, steps, others):
    # What a call writes, whether it came to it, whether somebody wrote before it.
    now, changes, is_alone = first, list[FileChange](), True
    for written, happens, foreign in steps:
        if foreign and changes and others != now:
            now, is_alone = others, False
        changes.append(
            FileChange(
                operation=OperationId(RunId("r"), len(changes), "c"),
                root="/",
                parts=("f",),
                before=now,
                after=written,
            )
        )
        now = written if happens else now
    if is_alone:
        assert leads_back(now, changes)
    for other in ("a", "b", "c", None):
        if leads_back(other, changes) and other != now:
            # Only what one of the calls was about to make, or to undo, is taken.
            assert other in {c.after for c in changes} | {c.before for c in changes}


def test_the_folder_of_a_session_holds_all_of_it(tmp_path: Path):
    assert file_changes(tmp_path / "nothing here") == []
