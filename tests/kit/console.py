"""The console in a browser, and the gateway behind it as a process to be killed."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import attrs

if TYPE_CHECKING:  # it need not be installed
    from playwright.sync_api import Locator, Page

SCENE: Final = Path(__file__).parents[1] / "browser/scene.py"
FILES: Final = {
    "poem.txt": "The lamp is lit, the chorus waits,\nthe prompter holds the page.\n",
    "cast.txt": "Ada: director\nGrace: stage manager\nAlan: prompter\n",
}


@final
@attrs.define(eq=False)
class SceneGateway:
    """`tests/browser/scene.py` as a process; it can be started again at its address."""

    folder: Path
    tokens: str = ""
    """As in a file of tokens."""
    port: int = attrs.field(factory=lambda: free_port())
    _process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.port}/"

    @property
    def workspace(self) -> Path:
        """The folder of its sessions."""
        return self.folder / "workspace"

    def start(self) -> None:
        """Start it, and return when it can be reached."""
        self.workspace.mkdir(exist_ok=True)
        for name, text in FILES.items():
            (self.workspace / name).write_text(text)
        command = [sys.executable, "-P", str(SCENE), "--port", str(self.port)]
        command += ["--state", str(self.folder / "state"), "--tokens", self.tokens]
        with (self.folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise AssertionError((self.folder / "log").read_text())

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal and wait for its end; nothing if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise


def free_port() -> int:
    """Return a port that was free a moment ago.

    A gateway that is started again needs the same, so 0 won't do.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@final
@attrs.frozen
class Console:
    """One page of the console, and what somebody does with it."""

    page: Page

    def new_session(self, workspace: Path, title: str) -> str:
        """Begin a session with the dialog; return its id."""
        page = self.page
        self.text("#lamp-text", "connected")
        page.locator("#open-new").click()
        page.locator("#new-workspace").fill(str(workspace))
        page.locator("#new-name").fill(title)
        page.locator("#new-name").press("Enter")
        self.text("#title", title)
        self.text("#state-text", "idle")
        return page.url.rpartition("/")[2]

    def say(self, text: str) -> None:
        """Send a message with the keyboard."""
        self.page.locator("#prompt").fill(text)
        self.page.locator("#prompt").press("Enter")

    def text(self, selector: str, text: str) -> None:
        """Wait until an element holds a text."""
        self.page.locator(selector, has_text=text).first.wait_for()

    def gone(self, selector: str) -> None:
        """Wait until an element can't be seen."""
        self.page.locator(selector).first.wait_for(state="hidden")

    @property
    def card(self) -> Locator:
        """The permission or question that is to be answered next."""
        return self.page.locator(".ask").first

    @property
    def replies(self) -> Locator:
        """What the agent said."""
        return self.page.locator(".message.assistant .prose")

    def marked(self, mark: str) -> None:
        """Wait until a turn ended so, or is paused."""
        self.page.locator(f'.message[data-outcome="{mark}"]').last.wait_for()


class OpenConsole(Protocol):
    """Opens a page in a profile of its own, or beside another page in its profile."""

    def __call__(
        self, url: str, *, beside: Console | None = None, **options: Any
    ) -> Console: ...
