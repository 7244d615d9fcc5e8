import re
import runpy
import sys
from pathlib import Path

import pytest
from warm_processes import run_script

from gossamer.ops import kernel_list
from gossamer.ops.operators.kernels import BACKWARD, FORWARD
from gossamer.ops.operators.table import _FUNCTIONS, _NAMES
from gossamer.ops.sparsifiers import SPARSIFIERS

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
# Pages about code: the map, and a README beside what it describes.
FOLDER_PAGES = sorted(
    [
        *(ROOT / "src").rglob("README.md"),
        *(ROOT / "native").rglob("README.md"),
        ROOT / "benchmarks" / "README.md",
    ]
)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def place(page):
    return str(page.relative_to(ROOT))


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


@pytest.fixture
def plug_ins_forgotten():
    """What a page registers must not be there in the tests after it."""
    kernels = kernel_list("linear")
    before = [(table, table.names()) for table in (kernels, SPARSIFIERS)]
    tables = [(table, dict(table)) for table in (FORWARD, BACKWARD, _FUNCTIONS, _NAMES)]
    yield
    for registry, names in before:
        for name in set(registry.names()) - set(names):
            registry.remove(name)
    for table, built_in in tables:
        table.clear()
        table.update(built_in)


@pytest.mark.usefixtures("plug_ins_forgotten")
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=place)
def test_code_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": page.stem}
    for number, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{page.name} block {number}", "exec"), names)  # noqa: S102


def test_pages_use_no_other_kind_of_code_block():
    for page in PAGES:
        kinds = set(re.findall(r"^```(\S+)$", page.read_text(), re.M))
        assert kinds <= {"python", "console"}, page.name


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.name)
def test_example_runs(example, tmp_path):
    result = run_script(example, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout


@pytest.mark.parametrize(
    "name", ["custom_format", "sparse_activations", "sparse_bert_layer", "sparse_gradients"]
)
def test_examples_of_plug_ins_and_sparse_tensors_are_short(name):
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 60


def test_make_targets_named_in_documents_exist():
    makefile = (ROOT / "Makefile").read_text()
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.M):
            assert re.search(rf"^{target}:", makefile, re.M), (page.name, target)


def test_commands_named_in_documents_exist():
    cli = {path.stem for path in (ROOT / "src" / "gossamer" / "cli").iterdir()}
    for page in PAGES:
        for command in re.findall(r"`gossamer ([a-z]+)", page.read_text()):
            assert command in cli, (page.name, command)


def headings(page):
    """The anchors of a page, as GitHub makes them of its headings."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


def test_links_between_documents_lead_somewhere():
    for page in [*PAGES, *ROOT.glob("*.md"), *FOLDER_PAGES]:
        for target, _, heading in re.findall(r"\]\(([^)#]*)(#([^)]*))?\)", page.read_text()):
            if "://" not in target:
                found = page.parent / target if target else page
                assert found.exists(), (place(page), target)
                assert not heading or heading in headings(found), (place(page), target, heading)


def test_no_page_holds_the_marks_of_a_merge():
    pages = [*PAGES, *FOLDER_PAGES, *ROOT.glob("*.md")]
    marked = [page for page in pages if re.search(r"^(<{7}|>{7}) ", page.read_text(), re.M)]
    assert marked == []


def test_source_files_named_in_documents_exist():
    folders = (ROOT, ROOT / "src" / "gossamer", ROOT / "tests")
    for page in [*PAGES, *ROOT.glob("*.md")]:
        for name in re.findall(r"`([\w/]+/[\w.-]+\.(?:py|hpp|cpp|sh))`", page.read_text()):
            assert any((folder / name).exists() for folder in folders), (page.name, name)


def test_source_files_named_beside_the_code_exist():
    files = [
        path.relative_to(ROOT).as_posix()
        for folder in ("src", "native", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.*")
    ]
    for page in [*FOLDER_PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]:
        for name in re.findall(r"`([\w/.-]+\.(?:py|hpp|cpp|sh))`", page.read_text()):
            assert any(f"/{file}".endswith(f"/{name}") for file in files), (place(page), name)


def test_every_result_is_named_in_the_index_of_benchmarks():
    text = (ROOT / "benchmarks" / "README.md").read_text()
    for result in (ROOT / "benchmarks" / "results").glob("*.md"):
        assert f"(results/{result.name})" in text, result.name
    for script in (ROOT / "benchmarks").glob("*.py"):
        assert f"`{script.name}`" in text, script.name


def test_every_page_is_named_in_the_index_of_docs():
    docs = ROOT / "docs"
    text = (docs / "README.md").read_text()
    for page in docs.rglob("*.md"):
        if page != docs / "README.md":
            assert f"({page.relative_to(docs).as_posix()})" in text, place(page)


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda p: p.name)
def test_benchmark_scripts_import_and_explain_themselves(script, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(script.parent))  # as Python does for a script
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(script), run_name="__main__")
    assert stop.value.code == 0
    assert "--json" in capsys.readouterr().out
