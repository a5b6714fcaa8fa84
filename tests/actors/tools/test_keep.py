"""Long output: kept in a file and previewed, at exactly the limit."""

from __future__ import annotations

import stat

import attrs
import pytest
from hypothesis import given, strategies as st
from kit.operations import FakeOperation, call

from greenroom.actors.tools._excerpt import HeadAndTail, cut_end, cut_middle
from greenroom.actors.tools.builtin._keep import kept
from greenroom.engine import open_engine
from greenroom.testing import Call, Halt, RehearsalProvider, Say


@pytest.mark.contract("TOL-16")
@pytest.mark.parametrize("ends", [True, False])
async def test_five_thousand_characters_are_shown_and_one_more_is_kept(context, ends):
    operation = FakeOperation(context)
    shown = await kept("x" * 5_000, operation, "list", ends=ends)
    assert shown.text == "x" * 5_000
    assert shown.kept is None
    assert not context.scratch.exists()
    text = "a" + "é" * 4_999 + "z"
    stub = await kept(text, operation, "list", ends=ends)
    assert stub.kept is not None
    assert stub.kept.parent == context.scratch
    assert stub.kept.read_text() == text
    note, _, preview = stub.text.partition("\n")
    assert note == f"[the output has 5001 characters; it is kept in {stub.kept}]"
    assert preview.count("é") == (1_022 if ends else 1_023)
    assert preview.startswith("a")
    assert preview.endswith("z") == ends
    assert "3977 characters left out" in preview
    assert not stub.is_error


async def test_kept_output_is_for_the_user_alone(context):
    result = await kept("x" * 5_001, FakeOperation(context), "list")
    assert result.kept is not None
    assert stat.S_IMODE(result.kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(context.scratch.stat().st_mode) == 0o700


@pytest.mark.contract("TOL-16")
async def test_the_limit_is_the_context_s(context):
    small = FakeOperation(attrs.evolve(context, inline_chars=10))
    assert (await kept("x" * 10, small, "list")).kept is None
    assert (await kept("x" * 11, small, "list")).kept is not None


@pytest.mark.contract("TOL-16")
async def test_output_that_can_not_be_kept_is_an_error_that_points_nowhere(context):
    context.scratch.write_text("in the way")
    result = await kept("x" * 5_001, FakeOperation(context), "list")
    assert result.is_error
    assert result.kept is None
    assert "can't be kept in a file" in result.text
    assert str(context.scratch) not in result.text


async def test_nothing_is_written_through_a_link_in_the_scratch_folder(context):
    operation = FakeOperation(context)
    first = await kept("x" * 5_001, operation, "list")
    assert first.kept is not None
    first.kept.unlink()
    victim = context.workspace / "victim"
    first.kept.symlink_to(victim)
    assert (await kept("y" * 5_001, operation, "list")).is_error
    assert not victim.exists()


@pytest.mark.contract("TOL-16")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("list", {}),
        ("find", {"pattern": "*"}),
        ("grep", {"pattern": "x"}),
    ],
)
async def test_long_output_of_each_listing_tool_is_kept(context, name, arguments):
    for number in range(30):
        (context.workspace / f"{number:0200}").write_text("x")
    result = await call(name, context, **arguments)
    assert result.kept is not None
    assert len(result.kept.read_text()) > 5_000
    assert len(result.text) < 1_400
    assert not result.is_error
    context.scratch.rename(context.scratch.with_name("gone"))
    context.scratch.write_text("in the way")
    assert (await call(name, context, **arguments)).is_error


async def test_a_command_shows_long_output_itself(context):
    result = await call("shell", context, command="printf '%6000s'; exit 3")
    assert result.kept is None
    assert result.is_error
    assert len(result.text) == 6_000 + len("\n[exit code 3]")
    assert not context.scratch.exists()


@given(st.text(max_size=60), st.integers(1, 40))
def test_cutting_says_how_much_is_missing(text, limit):
    for cut in (cut_middle(text, limit), cut_end(text, limit)):
        if len(text) <= limit:
            assert cut == text
        else:
            note = f"{len(text) - limit} characters left out"
            assert note in cut
            assert cut.startswith(text[: limit - limit // 2])


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_head_and_tail_are_those_of_the_whole(pieces):
    buffer, whole = HeadAndTail(8, 8), b"".join(pieces)
    for piece in pieces:
        buffer.add(piece)
    text = buffer.text()
    if len(whole) <= 16:
        expected = whole[:8].decode("utf-8", "replace") if len(whole) <= 8 else None
        assert expected is None or text == expected.replace("\x00", "�")
        assert "left out" not in text
    else:
        assert f"[… {len(whole) - 16} bytes left out …]" in text
        tail = whole[-8:].decode("utf-8", "replace").replace("\x00", "�")
        assert text.endswith(tail)
    text.encode()


@pytest.mark.contract("TOL-16")
async def test_an_engine_can_be_given_another_limit(tmp_path):
    (tmp_path / "workspace").mkdir()
    for name in ("a" * 30, "b" * 30):
        (tmp_path / "workspace" / name).write_text("x")
    provider = RehearsalProvider(
        [[Call("list", {}), Halt("tool_use")], [Say("done"), Halt()]]
    )
    async with open_engine(
        state=tmp_path / "state",
        provider=provider,
        inline_chars=50,
        gc_thresholds=False,
    ) as engine:
        session = await engine.create_session(workspace=tmp_path / "workspace")
        await session.prompt("go")
    (result,) = [m for m in provider.requests[1].messages if hasattr(m, "call_id")]
    assert "it is kept in" in result.text  # pyright: ignore[reportAttributeAccessIssue]
