# SPDX-License-Identifier: Apache-2.0
"""The tutorial's notebook, the parts that make the site, and, where Sphinx is, the site itself."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "site"


def part(name):
    spec = importlib.util.spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notebook_is_that_of_the_tutorial():
    notebook = part("notebook")
    assert notebook.NOTEBOOK.read_text() == notebook.notebook_of(notebook.PAGE.read_text()), (
        "run docs/site/notebook.py"
    )


@pytest.mark.timeout(900)
def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    book = json.loads(part("notebook").NOTEBOOK.read_text())
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    names = {"__name__": "__main__"}
    codes = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    for cell in codes:
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)  # noqa: S102
    assert len(codes) == 7
    assert names["pruned_quality"] > names["dense_quality"] - 0.02


def test_public_names_are_those_of_the_package_and_of_the_pages():
    import gossamer

    names = part("reference").public_names()
    assert {"compile", "save", "load"} <= names["gossamer"]
    assert {"Embedder", "make_writer"} <= names["gossamer.running.text"]
    assert "GPT" in names["gossamer.zoo"]
    for module, found in names.items():
        home = importlib.import_module(module)
        for name in found:
            assert (getattr(home, name).__doc__ or "").strip(), f"{module}.{name} says nothing"
    assert gossamer.__all__


def test_every_command_is_in_the_reference():
    from gossamer.cli.main import COMMANDS

    page = part("reference").commands_page()
    for name in COMMANDS:
        assert f"## gossamer {name}\n" in page
    assert "### gossamer run serve\n" in page


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("<a href='gone.html'>x</a>", "page.html: gone.html leads nowhere"),
        ("<a href='#gone'>x</a>", "page.html: #gone has no such anchor"),
        (
            "<script src='https://cdn.example/x.js'></script>",
            "page.html: would fetch https://cdn.example/x.js",
        ),
        ("<img src='//cdn.example/x.png'>", "page.html: would fetch //cdn.example/x.png"),
    ],
)
def test_faults_of_a_site_are_found(tmp_path, text, fault):
    (tmp_path / "page.html").write_text(f"<h1 id='top'>t</h1><a href='#top'>up</a>{text}")
    assert part("links").faults_of(tmp_path) == [fault]


def test_links_to_other_sites_are_not_fetched(tmp_path):
    (tmp_path / "page.html").write_text("<a href='https://example.org/#x'>x</a>")
    assert part("links").faults_of(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("sphinx", reason="make docs installs Sphinx")
    pytest.importorskip("myst_parser", reason="make docs installs it")
    built = subprocess.run(
        [sys.executable, SITE / "build.py", "--out", tmp_path / "html"],
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    for page in ("index.html", "docs/how-to/migrate.html", "names/gossamer.html"):
        assert (tmp_path / "html" / page).is_file(), page
    first = (tmp_path / "html" / "index.html").read_text()
    for shelf in ("Start", "How-to", "Reference", "Explanation", "Names and commands"):
        assert f'<span class="caption-text">{shelf}</span>' in first
