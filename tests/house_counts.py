# SPDX-License-Identifier: Apache-2.0
"""How large the house is: `python tests/house_counts.py [REV]` counts a revision, or this tree.

A revision is read out of git into a folder of its own; nothing is checked out.

Tokens of code are what Python's `tokenize` gives for the .py files below src/, without comments,
line ends, indentation and docstrings: of modules, classes, functions and, below them, of fields.
Commit 32097d8, where the clean-up of the house began, has 417,490 of them. Features that came since
are counted apart, so that growth of the product does not hide whether the same product takes less
code.
"""

import ast
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from io import BytesIO, StringIO
from pathlib import Path

import test_doors
import test_layer_tests

ROOT = Path(__file__).parents[1]
# What was added since: paths below src/gossamer, where a folder stands for all below it; then rooms
# of others that it reaches into, and the names of its definitions, fields and arguments there.
ADDED = {
    "growth": (
        (
            *("training/growth/", "recipes/stages/grow.py", "recipes/stages/train/grow.py"),
            *("planner/staged/", "planner/staged.py"),
        ),
        ("nn/families/", "training/loop/", "recipes/stages/", "runs/", "cli/plan.py", "planner/"),
        re.compile(r"_?grow|Growth|_?staged|_become_larger|_over_compute|_?[Rr]eopen"),
    ),
    "tables": (
        (
            *("nn/layers/tables/", "nn/surgery/tables/", "ops/table/", "io/torch_bags/"),
            *("training/optim/tables/", "training/optim/side_by_side.py", "data/clicks/"),
            *("training/distributed/tables/", "data/tasks/clicks.py", "zoo/dlrm.py"),
            *("recipes/stages/train/clicks.py", "recipes/stages/train/tables.py"),
            *("running/clicks/", "cli/run/score.py", "search/workloads/clicks.py"),
            *("zoo/problems/clicks.py", "planner/table_step.py", "data/evaluation.py"),
            "runs/stages/round_tables.py",
        ),
        ("io/", "nn/", "ops/_native.pyi", "planner/", "recipes/", "runs/", "running/", "training/"),
        re.compile(r"_?[Tt]able|_?[Cc]lick|_?[Ss]core|Dlrm|Divisible|Shared|counts_ids|Rounded"),
    ),
    "graphs": (
        (
            *("graph/", "ops/spmm/", "data/graphs/", "data/tasks/graph.py", "zoo/graph_nets.py"),
            *("zoo/problems/graphs.py", "recipes/stages/train/graph.py"),
            *("search/workloads/graphs.py", "ops/tall.py"),
        ),
        ("running/", "runs/", "search/"),
        re.compile(r"_?[Gg]raph_(task|settings|work|layers)"),
    ),
    "experts": (
        (
            *("nn/moe/", "nn/layers/experts/", "ops/experts/", "running/packed/experts.py"),
            *("pruning/calibration/experts.py", "nn/surgery/known_layers.py"),
        ),
        ("nn/", "pruning/", "running/", "io/", "training/", "runs/"),
        re.compile(r"_?[Ee]xpert|_?pack_experts|num_parts|unstack|_solved|_together|as_published"),
    ),
    "any model": (
        (
            *("io/huggingface/auto_tables.py", "io/huggingface/example_inputs.py"),
            "io/huggingface/trial_run.py",
        ),
        (),
        re.compile("never"),
    ),
}
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
LAYOUT |= {tokenize.ENCODING, tokenize.ENDMARKER}
NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def tokens(source, names=None):
    """How many there are; with `names`, only in definitions and arguments that match."""
    tree = ast.parse(source)
    docstrings = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    spans = [
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        for node in ast.walk(tree)
        if names is not None and names.match(name_of(node))
    ]
    return sum(
        token.type not in LAYOUT
        and not (token.type == tokenize.STRING and token.start[0] in docstrings)
        and (names is None or any(start <= token.start < end for start, end in spans))
        for token in tokenize.generate_tokens(StringIO(source).readline)
    )


def name_of(node):
    """Of a class, function, field, keyword argument or module that is imported from."""
    if isinstance(node, ast.AnnAssign):
        return getattr(node.target, "id", "")
    if isinstance(node, ast.keyword):
        return node.arg or ""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").rpartition(".")[2]
    return node.name if isinstance(node, NAMED) else ""


def module_name(path):
    return ".".join(("gossamer", *path.with_suffix("").parts)).removesuffix(".__init__")


def imported(own, source, modules):
    """Modules that a file names in an import or in the homes of a lazy door, each once."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield f"{own}.{node.value}"


def one_importer(sources):
    """Modules, doors aside, that exactly one other module imports."""
    modules = {module_name(path) for path in sources}
    counts = Counter()
    for path, source in sources.items():
        own = module_name(path)
        counts.update((modules & set(imported(own, source, modules))) - {own})
    inner = {module_name(path) for path in sources if path.name != "__init__.py"}
    return sum(counts[name] == 1 for name in inner)


def twice(sources):
    names = Counter(
        node.name
        for source in sources.values()
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sum(number > 1 for number in names.values())


def measure(folder):
    """Names of what is counted, and the counts."""
    # The tests of doors and of layers count; they look at this tree unless told otherwise.
    test_doors.SOURCE = test_layer_tests.SOURCE = folder
    doors = {path.parent.relative_to(folder).parts: path for path in folder.rglob("__init__.py")}
    test_doors.PACKAGES = doors
    sources = {path.relative_to(folder): path.read_text() for path in folder.rglob("*.py")}
    counted = {str(path): tokens(source) for path, source in sources.items()}
    added = {
        feature: sum(number for path, number in counted.items() if path.startswith(paths))
        + sum(tokens(text, names) for path, text in sources.items() if str(path).startswith(rooms))
        for feature, (paths, rooms, names) in ADDED.items()
    }
    folders = Counter(path.parent for path in sources).most_common(5)
    yield "files", len(sources)
    yield "tokens of code", sum(counted.values())
    for feature, number in added.items():
        yield f"  of these, {feature}", number
    yield "  without what was added", sum(counted.values()) - sum(added.values())
    yield "modules in the largest folders", ", ".join(f"{name} {n}" for name, n in folders)
    yield "modules with one importer", one_importer(sources)
    yield "public class names that appear twice", twice(sources)
    yield "type tests on layers outside nn/", sum(test_layer_tests.found().values())
    yield "imports past doors", sum(test_doors.all_past_doors().values())
    yield f"doors with more than {test_doors.WIDEST} names", len(test_doors.wide_doors())


def main():
    with tempfile.TemporaryDirectory() as folder:
        tree = ROOT
        if sys.argv[1:]:
            words = ["git", "-C", str(ROOT), "archive", sys.argv[1], "src"]
            archive = subprocess.run(words, check=True, capture_output=True).stdout
            with tarfile.open(fileobj=BytesIO(archive)) as files:
                files.extractall(folder, filter="data")
            tree = Path(folder)
        for name, number in measure(tree / "src" / "gossamer"):
            print(f"{name:40}{f'{number:,}' if isinstance(number, int) else number}")


if __name__ == "__main__":
    main()
