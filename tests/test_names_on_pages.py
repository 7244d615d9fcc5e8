# SPDX-License-Identifier: Apache-2.0
"""Files and folders that the pages for developers name are there: a moved one is found by its page.

A name in backticks with an end such as `.py`, or with a slash behind it, is looked for below the
page, in the package, in `native/` and in the project; docstrings and comments are read like pages.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/gossamer"
PAGES = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted(PACKAGE.rglob("README.md"))]
NAMED = re.compile(r"`([\w./-]+(?:\.py|\.cpp|\.hpp|\.yaml|/))`")
IN_CODE = re.compile(r"`([a-z_]+(?:/\w+)+(?:\.py|/))`")


def below(*folders):
    """Paths of all files, and of all folders with a slash behind them."""
    for folder in folders:
        for path in folder.rglob("*"):
            yield f"{path}/" if path.is_dir() else str(path)


FOLDERS = (PACKAGE, *(ROOT / name for name in ("native", "tests", "benchmarks", "docs")))
THERE = [*(f"{folder}/" for folder in FOLDERS), *below(*FOLDERS)]


def missing(text, page, pattern=NAMED):
    """Names on a page behind which there is no file or folder."""
    for name in dict.fromkeys(pattern.findall(text)):
        # A bare name is that of a file below the page, or of one right in the package.
        near = str(page.parent) if "/" not in name else str(ROOT)
        paths = [path for path in THERE if path.endswith(f"/{name}")]
        if not any(path.startswith(near) or path == f"{PACKAGE}/{name}" for path in paths):
            yield name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page):
    assert not list(missing(page.read_text(), page))


def test_what_comments_and_docstrings_name_is_there():
    sources = sorted(PACKAGE.rglob("*.py"))
    found = {path: list(missing(path.read_text(), path, IN_CODE)) for path in sources}
    assert not {str(path): names for path, names in found.items() if names}


def test_a_name_that_leads_nowhere_is_found():
    page = PACKAGE / "ops/README.md"
    assert list(missing("`kernels/`, `dispatch.py`, `timing/`, `gone.py`", page)) == [
        "kernels/",
        "gone.py",
    ]
