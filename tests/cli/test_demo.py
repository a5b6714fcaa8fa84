from __future__ import annotations

import pytest
import trio

from greenroom.cli import _demo
from greenroom.cli._exit import CliError
from greenroom.cli._terminal import Terminal


async def test_a_demo_whose_engine_does_not_start_in_time_says_so_and_leaves_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(_demo, "_CHILD_SECONDS", 0)
    terminal = Terminal(lambda text: None, colors=False, live=False)
    stage = _demo._Stage.make(tmp_path, terminal)
    with trio.fail_after(30), pytest.raises(CliError, match="did not start"):
        await stage._killed_session()
