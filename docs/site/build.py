# SPDX-License-Identifier: Apache-2.0
"""The documentation site: `make docs` writes it to `build/docs/html`, to be opened from disk.

The pages are the ones in the repository. They are copied in the same places, so that their links
hold; shelves are read from the tables of `docs/README.md`, and the reference of names and commands
is made of docstrings. A warning of Sphinx is an error, and so is a link or an anchor that leads
nowhere, and anything that a page would fetch from a network.
"""

import argparse
import re
import shutil
import sys
from pathlib import Path

from links import faults_of
from reference import write_reference
from sphinx.cmd.build import build_main

ROOT = Path(__file__).parents[2]
SHELF = re.compile(r"^## (.+)$|^\| \[[^\]]+\]\(([^)#]+\.md)\)", re.M)
# Pages of the repository that stand beside the shelves.
PROJECT = ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build/docs/html", help="folder of the site"
    )
    asked = parser.parse_args()
    source, trees = asked.out.parent / "source", asked.out.parent / "doctrees"
    shutil.rmtree(source, ignore_errors=True)
    shutil.rmtree(asked.out, ignore_errors=True)
    put_in_place(source)
    reference = write_reference(source / "names")
    add_shelves(source, reference)
    options = ["-b", "html", "-W", "--keep-going", "-q", "-E", "-d", str(trees)]
    if code := build_main(
        [*options, "-c", str(Path(__file__).parent), str(source), str(asked.out)]
    ):
        sys.exit(code)
    # Opened as a folder, the site begins where the project does.
    shutil.copyfile(asked.out / "README.html", asked.out / "index.html")
    faults = faults_of(asked.out)
    for fault in faults:
        print(fault)
    pages = len(list(asked.out.rglob("*.html")))
    print(f"{asked.out / 'index.html'}: {pages} pages, {len(faults)} faults")
    sys.exit(1 if faults else 0)


def put_in_place(source: Path) -> None:
    """Every page, picture and linked file, where it is in the repository."""
    for folder in ("docs", "src", "native", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*"):
            kept = path.suffix in {".md", ".svg", ".ipynb", ".jsonl"} or folder == "examples"
            if kept and path.is_file() and "__pycache__" not in path.parts:
                copy(path, source)
    for path in (*ROOT.glob("*.md"), ROOT / "LICENSE"):
        copy(path, source)


def copy(path: Path, source: Path) -> None:
    target = source / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def shelves() -> dict[str, list[str]]:
    """Shelf -> its pages, as the tables of `docs/README.md` have them."""
    found: dict[str, list[str]] = {}
    for title, page in SHELF.findall((ROOT / "docs" / "README.md").read_text()):
        if title:
            pages = found.setdefault(title, [])
        else:
            pages.append(f"docs/{page}")
    return {title: pages for title, pages in found.items() if pages}


def add_shelves(source: Path, reference: list[str]) -> None:
    """Tables of contents at the end of the first page, from which the side bar is made."""
    known = {path.relative_to(source).as_posix() for path in source.rglob("*.md")}
    parts = {"": ["docs/README.md"], **shelves(), "Names and commands": reference}
    placed = {page for pages in parts.values() for page in pages} | {"README.md", *PROJECT}
    results = sorted(page for page in known if page.startswith("benchmarks/results/"))
    folders = sorted(known - placed - {*results, "benchmarks/README.md"})
    parts["Project"] = [*PROJECT, "benchmarks/README.md"]
    with (source / "README.md").open("a") as file:
        for title, pages in parts.items():
            file.write(contents(pages, title))
    # Behind the page that names them, not in the side bar of every page.
    for page, below in (("benchmarks/README.md", results), ("ARCHITECTURE.md", folders)):
        with (source / page).open("a") as file:
            names = [relative(name, page) for name in below]
            file.write(contents(names))


def relative(page: str, from_page: str) -> str:
    return "../" * from_page.count("/") + page


def contents(pages: list[str], title: str = "") -> str:
    caption = [f":caption: {title}"] if title else []
    return "\n".join(["", "```{toctree}", ":hidden:", *caption, "", *pages, "```", ""])


if __name__ == "__main__":
    main()
