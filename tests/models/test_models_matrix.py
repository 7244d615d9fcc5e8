# SPDX-License-Identifier: Apache-2.0
"""Every architecture can do what its row of docs/reference/models.md says, or refuses as told."""

import pytest

pytest.importorskip("transformers")

from cells import cells_of
from model_rows import ARCHITECTURES
from write_models_page import PAGE, head_of, line_of, reason_of, refusals_of

# Some classes of transformers compile parts of themselves by torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
RUN = "To write the page anew: python tests/models/write_models_page.py"


@pytest.mark.parametrize("row", ARCHITECTURES, ids=lambda row: row.title)
def test_an_architecture_does_what_its_row_says(row, tmp_path):
    cells = cells_of(row, tmp_path)
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert line_of(row, cells) in lines, RUN
    said = [line for line in lines if line.startswith(f"- {row.title}, ")]
    assert said == refusals_of(row, cells), RUN
    why = reason_of(row, cells)
    listed = [line for line in lines if line.startswith(f"- {why}: ")]
    assert (why is not None) == (len(listed) == 1), RUN
    if why is not None:
        assert row.title in listed[0].removeprefix(f"- {why}: ").split(", "), RUN


def test_the_page_has_these_architectures_and_no_others():
    page = PAGE.read_text(encoding="utf-8")
    assert page.startswith(head_of(len(ARCHITECTURES))), RUN
    lines = page.splitlines()
    named = [line.split("|")[1].strip() for line in lines if line.count("|") == 8]
    assert [name for name in named if name not in ("model", "---")] == [
        row.title for row in ARCHITECTURES
    ], RUN
    assert len({row.title for row in ARCHITECTURES}) == len(ARCHITECTURES) >= 40
    assert len({row.model for row in ARCHITECTURES}) >= 40


def test_every_kind_of_model_is_there():
    kinds = {row.kind for row in ARCHITECTURES}
    assert len(kinds) == 6
    for kind in kinds:
        assert sum(row.kind == kind for row in ARCHITECTURES) >= 3
