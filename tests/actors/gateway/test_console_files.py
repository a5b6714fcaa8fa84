"""The console's files: all of them are served, and none can harm whoever opens them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from greenroom.actors.endpoints.gateway import console
from greenroom.actors.endpoints.gateway.console import FILES, HEADERS, load_page

FOLDER: Final = Path(console.__file__).parent
SOURCES: Final = sorted(each for each in FOLDER.iterdir() if each.suffix == ".js")

DANGEROUS: Final = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function"
    r"|DOMParser|srcdoc|createContextualFragment|setAttribute\(.on|javascript:"
)
"""What makes markup or code of text; `dom.js` may say in words that it does not."""


def test_every_file_of_the_page_is_served_and_nothing_else() -> None:
    names = {name for name, _ in FILES.values()}

    files = {each.name for each in FOLDER.iterdir() if each.is_file()}
    assert names == {name for name in files if not name.endswith(".py")}
    assert {path: file.body for path, file in load_page().items()} == {
        path: (FOLDER / name).read_bytes() for path, (name, _) in FILES.items()
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path)
def test_a_file_names_no_other_origin_and_only_files_that_are_served(path: str) -> None:
    text = load_page()[path].body.decode()

    folder = path.rpartition("/")[0]
    imported = [f"{folder}/{name}" for name in re.findall(r'from "\./(.+?)"', text)]
    linked = re.findall(r'(?:href|src)="(/.+?)"', text)
    assert [each for each in imported + linked if each not in FILES] == []
    addresses = re.findall(r"\w+://[\w.]+\S*", text)
    assert [each for each in addresses if "www.w3.org/2000/svg" not in each] == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_no_script_makes_markup_or_code_of_text(source: Path) -> None:
    code = re.sub(r"^\s*//.*$", "", source.read_text(), flags=re.MULTILINE)

    assert DANGEROUS.findall(code) == []


def test_the_policy_allows_nothing_that_the_page_does_not_need() -> None:
    policy = dict(
        rule.strip().split(" ", 1)
        for rule in HEADERS["Content-Security-Policy"].split(";")
    )

    assert policy.pop("default-src") == "'none'"
    assert policy.pop("require-trusted-types-for") == "'script'"
    allowed = {name: value for name, value in policy.items() if value != "'none'"}
    assert allowed == {
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
    }
    page = load_page()["/"].body.decode()
    assert re.findall(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", page) == []
