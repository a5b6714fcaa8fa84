"""How fast and how close the estimate of tokens is, against a tokenizer of ``o200k``.

The texts are our own code and prose, JSON of tool calls, and Chinese, Japanese
and Korean sentences. Errors are shares of the true count: 0.05 is five per cent.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from runner import Case, Figures, Limit, Ratio
from stopwatch import Stopwatch

from greenroom.protocol import (
    TextPart,
    Usage,
    UserMessage,
    canonical_json,
    estimate_tokens,
)
from greenroom.protocol.context import (
    RequestKind,
    Tally,
    prompt_tokens,
    usage_anchor,
)

ROOT: Final = Path(__file__).parent.parent
CHARS: Final = 12_000
"""Of each text; beyond 16 KB only a sample of a text is looked at."""

CJK: Final = """\
这个程序会把每一条消息写进日志、然后再去执行工具。如果机器突然断电、下一次启动的时候、\
它会检查哪些操作已经完成、哪些操作还不知道结果。用户可以随时取消正在进行的工作。
利用者はいつでも作業を取り消すことができます。取り消しを受け取ると、新しい要求を送らず、\
動いている仕事を数秒以内に終わらせます。結果が分からない操作は、人に尋ねます。
중간에 전원이 꺼지더라도 다음에 시작할 때 어떤 작업이 끝났는지 확인할 수 있습니다. \
결과를 알 수 없는 작업은 다시 실행하지 않고 사용자에게 물어봅니다.
"""


@lru_cache(1)
def _texts() -> Mapping[str, str]:
    code = sorted((ROOT / "storage").rglob("*.py"))
    prose = sorted((ROOT / "docs").rglob("*.md"))
    calls = [
        {
            "id": f"call_{number:x}",
            "type": "function",
            "function": {"name": "read", "arguments": '{"path":"src/main.py"}'},
            "usage": {"prompt_tokens": 1_834 + number, "cached": number % 2 == 0},
        }
        for number in range(200)
    ]
    return {
        "code": "".join(path.read_text() for path in code)[:CHARS],
        "prose": "".join(path.read_text() for path in prose)[:CHARS],
        "json": canonical_json(calls)[:CHARS],
        "cjk": (CJK * 40)[: CHARS // 3],
    }


@lru_cache(1)
def _encoding() -> Any:  # noqa: ANN401 - of a package that may be missing
    return importlib.import_module("quicktok").get_encoding("o200k_base")


def _counted(text: str) -> int:
    return _encoding().count(text)


def _rate(count: Callable[[str], int], times: int) -> Figures:
    texts = _texts().values()
    size = sum(len(text.encode()) for text in texts)
    for text in texts:
        count(text)
    watch = Stopwatch()
    for _ in range(times):
        for text in texts:
            count(text)
    return {"bytes_per_s": size * times / watch.cpu()}


def _errors(_: int) -> Figures:
    texts = _texts()
    estimated = {name: estimate_tokens(text) for name, text in texts.items()}
    counted = {name: _counted(text) for name, text in texts.items()}
    errors = {name: abs(estimated[name] / counted[name] - 1) for name in texts}
    errors["all"] = abs(sum(estimated.values()) / sum(counted.values()) - 1)
    return errors | {"corrected": _corrected_error()}


def _corrected_error() -> float:
    # A request with the first half of each text, which is counted; then one with the
    # other halves behind it.
    halves = [(t[: len(t) // 2], t[len(t) // 2 :]) for t in _texts().values()]
    seen, coming = zip(*halves, strict=True)
    kind, tally = RequestKind("p", "m", "", ""), Tally()
    tally.show([UserMessage((TextPart(text),)) for text in seen])
    used = sum(map(_counted, seen))
    anchor = usage_anchor(kind, tally, Usage(input=used, output=0, total=used))
    tally.show([UserMessage((TextPart(text),)) for text in (*seen, *coming)])
    corrected, _, _ = prompt_tokens(anchor, kind, tally, 0)
    return abs(corrected / sum(map(_counted, (*seen, *coming))) - 1)


RATE: Final = Case(
    name="estimate-rate",
    question="how fast is an estimate, against counting?",
    clock="cpu",
    sides={
        "estimate": lambda size: _rate(estimate_tokens, size),
        "quicktok": lambda size: _rate(_counted, size),
    },
    claims=(Ratio("bytes_per_s", over="estimate", under="quicktok", at_least=4.0),),
    size=100,
    smoke_size=1,
    needs="quicktok",
)

ERROR: Final = Case(
    name="estimate-error",
    question="how far off is an estimate, and after one usage?",
    clock="share of the count",
    sides={"estimate": _errors},
    claims=(
        *(
            Limit(name, of="estimate", at_most=0.25)
            for name in ("code", "prose", "json", "cjk")
        ),
        Limit("all", of="estimate", at_most=0.15),
        Limit("corrected", of="estimate", at_most=0.05),
    ),
    size=1,
    smoke_size=1,
    needs="quicktok",
)

CASES: Final = (RATE, ERROR)
