# SPDX-License-Identifier: Apache-2.0
"""Imports go one way, as ARCHITECTURE.md draws it."""

import ast
from pathlib import Path

import pytest

import gossamer

SOURCE = Path(gossamer.__file__).parent
# A layer may import itself and the layers before it. Parts of one layer never import each other.
LAYERS = (
    {"errors"},
    {
        "settings",
        "registry",
        "named_files",
        "lazy_door",
        "plain_data",
        "method_table",
        "out_of_memory",
    },
    {"patterns"},
    {"formats"},
    {"ops"},
    {"nn"},
    {"graph"},
    {"zoo"},
    {"io"},
    {"data"},
    {"pruning", "training", "running"},
    {"report"},
    {"recipes"},
    {"runs"},
    {"planner"},
    {"search"},
    {"cli"},
)
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
# Doors for users: they gather names from everywhere, and nothing inside may come through them.
DOORS = {"__init__", "__main__", "register", "testing"}
FILES = sorted(SOURCE.rglob("*.py"))


def part_of(path):
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported_parts(source):
    """Parts of gossamer that a file imports anywhere, TYPE_CHECKING and functions included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "gossamer":
            names = [f"gossamer.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "gossamer":
                yield name.split(".")[1] if "." in name else "__init__", node.lineno


def faults(part, source):
    for other, line in imported_parts(source):
        # The package itself holds the version; reaching functions through it would hide a cycle.
        if other == "__init__" and part in ("report", "cli"):
            continue
        if other == part:
            continue
        if other in DOORS or RANK[other] >= RANK[part]:
            yield f"line {line}: {part} imports {other}"


@pytest.mark.parametrize(
    "path", [f for f in FILES if part_of(f) not in DOORS], ids=lambda f: str(f.relative_to(SOURCE))
)
def test_imports_go_one_way(path):
    assert list(faults(part_of(path), path.read_text())) == []


def test_every_part_has_a_place():
    assert {part_of(path) for path in FILES} <= set(RANK) | DOORS


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("pruning", "from gossamer.training.modes import choose_modes"),
        ("running", "import gossamer.pruning"),
        ("nn", "def f():\n    from gossamer.io import load"),
        ("formats", "from gossamer import nn"),
        ("io", "import gossamer"),
        ("errors", "from gossamer import settings"),
        ("ops", "from gossamer.testing import check_format"),
    ],
)
def test_a_wrong_import_would_be_found(part, source):
    assert len(list(faults(part, source))) == 1
