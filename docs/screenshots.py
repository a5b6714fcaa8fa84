"""Take the pictures of the console that the docs show.

``python docs/screenshots.py`` plays ``greenroom serve --demo`` in Chromium and writes
docs/console-*.png. It needs what ``tests/browser/install`` fetches.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).parent
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 780}
OTHER_SESSIONS = "Tour dates for the spring", "Who keeps the lamp?"

# The page takes the system's font; with this it looks as on most systems.
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
<include>/etc/fonts/fonts.conf</include><match target="pattern">
<test name="family" qual="first"><string>{family}</string></test>
<edit name="family" mode="assign" binding="strong">
<string>Liberation Sans</string></edit></match></fontconfig>"""


def main() -> None:
    """Play the demo and take the pictures."""
    command = [sys.executable, "-P", "-m", "greenroom", "serve"]
    command += ["--demo", "--json", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            with tempfile.TemporaryDirectory() as folder:
                take_all(url, Path(folder))
        finally:
            server.terminate()


def take_all(url: str, folder: Path) -> None:
    """Take each picture at a moment of the demo that shows something."""
    fonts = folder / "fonts.conf"
    fonts.write_text(FONTS.format(family="DejaVu Sans"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox"] if os.getuid() == 0 else [],
            env={**os.environ, "FONTCONFIG_FILE": str(fonts)},
        )
        page = open_page(browser, url, "light", DESKTOP)
        for title in OTHER_SESSIONS:
            begin(page, title)
        page.locator(".session", has_text="A scripted session").click()
        page.locator(".choice", has_text="Ada").click()
        page.locator(".ask.permission .diff").wait_for()
        take(page, "light")
        phone = open_page(browser, page.url, "light", PHONE, device_scale_factor=2)
        phone.locator(".ask.permission .diff").wait_for()
        take(phone, "phone")
        page.locator(".ask .primary").click()
        page.locator(".ask", has_text="wc -w").locator(".primary").click()
        dark = open_page(browser, page.url, "dark", DESKTOP)
        dark.locator('.message[data-outcome="completed"]').wait_for()
        take(dark, "dark")
        browser.close()


def open_page(
    browser: Browser, url: str, scheme: str, size: dict[str, int], **options: object
) -> Page:
    """Open the page in a profile of its own."""
    context = browser.new_context(
        viewport=size,  # type: ignore[arg-type]
        color_scheme=scheme,  # type: ignore[arg-type]
        reduced_motion="reduce",
        **options,  # type: ignore[arg-type]
    )
    page = context.new_page()
    page.goto(url)
    page.locator('body[data-connection="open"]').wait_for()
    return page


def begin(page: Page, title: str) -> None:
    """Begin a session and leave it where it asks."""
    page.locator("#open-new").click()
    page.locator("#new-name").fill(title)
    page.locator("#new-name").press("Enter")
    page.locator("#title", has_text=title).wait_for()
    page.locator("#prompt").fill(title)
    page.locator("#prompt").press("Enter")
    page.locator(".ask").wait_for()


def take(page: Page, name: str) -> None:
    """Take the picture, with the panels up to date and nothing in focus."""
    page.locator("#prompt").blur()
    page.wait_for_timeout(3_500)
    page.screenshot(path=HERE / f"console-{name}.png")


if __name__ == "__main__":
    main()
