"""Estimates against counts of ``o200k`` that were made once and are written here."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from greenroom.protocol import estimate_tokens

CODE = """\
def merged(older: Row | None, revision: Row) -> Row:
    \"\"\"Return *revision* with the parts of the row before it where it has none.\"\"\"
    if revision.parts is not None or older is None:
        return revision
    for index, (name, value) in enumerate(sorted(older.parts.items())):
        if index >= MAX_PARTS or not name.startswith("_"):
            raise ValueError(f"part {name!r} at {index}: {value[:80]!r}")
    return replace(revision, parts=older.parts)
"""
PROSE = """\
A message that was accepted is never lost. It is written down before anybody acts on it,
and when the machine stops in the middle of the work, the next start finds it there and
says what became of it. Nothing is done a second time on its own: where the result of a
payment is not known, a person is asked, because an unpleasant question costs less than
a second payment.
"""
JSON = """\
{"id":"call_7f3a91","type":"function","function":{"name":"read_file","arguments":
{"path":"src/main.py","offset":120,"limit":40}},"usage":{"prompt_tokens":1834,
"completion_tokens":97,"total_tokens":1931,"cached":true,"ratio":0.125},"items":
[{"seq":1,"status":"ok"},{"seq":2,"status":"failed","code":null}]}
"""
CJK = """\
这个程序会把每一条消息写进日志、然后再去执行工具。如果机器突然断电、下一次启动的时候、
它会检查哪些操作已经完成、哪些操作还不知道结果。
利用者はいつでも作業を取り消すことができます。取り消しを受け取ると、新しい要求を送らず、
動いている仕事を数秒以内に終わらせます。
중간에 전원이 꺼지더라도 다음에 시작할 때 어떤 작업이 끝났는지 확인할 수 있습니다.
"""

COUNTS = (116, 84, 95, 116)


@pytest.mark.parametrize(
    ("text", "counted"),
    list(zip((CODE, PROSE, JSON, CJK), COUNTS, strict=True)),
    ids=["code", "prose", "json", "cjk"],
)
def test_an_estimate_is_within_a_quarter_of_the_count(text: str, counted: int) -> None:
    assert abs(estimate_tokens(text) / counted - 1) <= 0.25


def test_a_long_text_is_sampled_and_still_close() -> None:
    text = (CODE + PROSE + JSON + CJK) * 40

    assert abs(estimate_tokens(text) / (40 * sum(COUNTS)) - 1) <= 0.15


@given(st.text(max_size=300))
def test_only_nothing_has_no_tokens(text: str) -> None:
    assert (estimate_tokens(text) == 0) == (text == "")
    # Every token of o200k has at least one byte.
    assert estimate_tokens(text) <= 3 * len(text.encode("utf-8", "replace")) + 1


def test_lone_surrogates_are_no_trouble() -> None:
    assert estimate_tokens("a\ud800b") >= 1
