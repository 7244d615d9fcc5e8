# SPDX-License-Identifier: Apache-2.0
"""The page of published systems: all are there, and so is every test and file that it names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "papers.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
SYSTEMS = (
    "SAMO", "AxoNN", "Early-Bird", "Kwon", "LTP", "TASC", "STen", "VENOM", "SparseGPT", "Wanda",
    "oBERT", "SNIP", "GraSP", "SynFlow", "RigL", "GMP", "AC/DC", "ReLU strikes back",
    "I/O-efficient", "Staged training", "DQRM", "reordering", "BigBird", "Longformer", "Reformer",
    "Linformer", "Quest", "StreamingLLM", "MInference", "Switch", "LAMB", "LARS", "FireCaffe",
    "SqueezeNet", "SqueezeBERT",
)  # fmt: skip


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_system_has_a_row_with_a_source_and_a_test(system):
    rows = [row for row in ROWS if system in row.split("|")[1]]
    assert len(rows) == 1
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    assert len(cells) == 4
    assert all(cells)
    assert "arxiv.org/abs/" in cells[1] or "no paper" in cells[1]
    assert re.search(r"`[a-z_/]+/test_\w+\.py", cells[3])


def test_every_test_that_is_named_is_there():
    named = re.findall(r"`([a-z_/]+/test_\w+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 40
    for file, function in named:
        path = ROOT / "tests" / file
        assert path.is_file(), file
        if function:
            assert re.search(rf"^\s*def {function}\(", path.read_text(), re.M), (file, function)


def test_a_test_that_is_not_there_would_be_found():
    named = re.findall(r"`([a-z_/]+/test_\w+\.py)(?:::(\w+))?`", "`nn/test_x.py::test_y`")
    assert named == [("nn/test_x.py", "test_y")]
    assert not (ROOT / "tests" / named[0][0]).is_file()
