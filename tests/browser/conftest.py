"""A real gateway in a process of its own, and a real Chromium that looks at it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from kit.console import Console, OpenConsole, SceneGateway
from kit.console_wire import SESSION, PlayedGateway

INSTALL: Final = "tests/browser/install fetches it"
PATIENCE_MS: Final = 10_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser, of type `playwright.sync_api.Browser`."""
    driver = pytest.importorskip(
        "playwright.sync_api", reason=f"playwright is not installed; {INSTALL}"
    )
    program = os.environ.get("GREENROOM_CHROMIUM") or shutil.which("chromium")
    if program is None:
        pytest.skip(f"chromium is not installed; {INSTALL}")
    with driver.sync_playwright() as playwright:
        # Root can't have the sandbox, and the pages are our own.
        arguments = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def gateway(
    chromium: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SceneGateway]:
    """One for all tests that do no harm to it; each has sessions of its own."""
    gateway = SceneGateway(tmp_path_factory.mktemp("gateway"))
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.end()


@pytest.fixture(scope="session")
def mortal_gateway(
    chromium: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SceneGateway]:
    """One that is killed and stopped; each test leaves it running."""
    gateway = SceneGateway(tmp_path_factory.mktemp("mortal"))
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.end()


@pytest.fixture
def own_gateway(chromium: Any, tmp_path: Path) -> Iterator[SceneGateway]:
    """One for this test alone; it is not started yet."""
    gateway = SceneGateway(tmp_path)
    yield gateway
    gateway.end()


@pytest.fixture
def open_console(chromium: Any) -> Iterator[OpenConsole]:
    """Open consoles; at the end no script of theirs has failed."""
    with consoles(chromium) as open_console:
        yield open_console


@pytest.fixture(scope="session")
def idle_console(gateway: SceneGateway, chromium: Any) -> Iterator[Console]:
    """One without a session, for what is asked of the page's scripts alone."""
    with consoles(chromium) as open_console:
        console = open_console(gateway.url)
        console.text("#lamp-text", "connected")
        yield console


@contextmanager
def consoles(chromium: Any) -> Iterator[OpenConsole]:
    """Open consoles of *chromium*; at the end no script of theirs has failed."""
    problems: list[str] = []
    opened: list[Any] = []

    def note(told: Any) -> None:
        known = "WebSocket connection", "requires 'TrustedHTML'"
        if told.type in ("error", "warning") and not any(w in told.text for w in known):
            problems.append(told.text)

    def ours(request: Any) -> None:
        # Nothing is ever asked of anybody else.
        asked = urlsplit(request.url)
        if asked.scheme not in ("data", "about") and asked.hostname != "127.0.0.1":
            problems.append(f"asked for {request.url[:200]}")

    def open_console(
        url: str, *, beside: Console | None = None, **options: Any
    ) -> Console:
        if beside is None:
            # Nothing moves that nobody looks at: drawing it without a GPU is dear.
            usual = {"viewport": {"width": 1280, "height": 860}}
            usual |= {"reduced_motion": "reduce"}
            context = chromium.new_context(**(usual | options))
            context.set_default_timeout(PATIENCE_MS)
            opened.append(context)
        else:
            context = beside.page.context
        page = context.new_page()
        opened.append(page)
        page.on("request", ours)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", note)
        page.goto(url)
        return Console(page)

    yield open_console
    for each in reversed(opened):
        each.close()
    assert problems == []


@pytest.fixture
def open_played(
    gateway: SceneGateway, idle_console: Console, open_console: OpenConsole
) -> Any:
    """Open the console with its session, of a gateway that the test plays."""

    def open_played(**answers: Any) -> tuple[Console, PlayedGateway]:
        named = {name.replace("__", "/"): answer for name, answer in answers.items()}
        played = PlayedGateway(named)
        console = open_console("about:blank", beside=idle_console)
        played.play(console.page)
        console.page.goto(f"{gateway.url}#/session/{SESSION}")
        console.text("#title", "Played")
        return console, played

    return open_played
