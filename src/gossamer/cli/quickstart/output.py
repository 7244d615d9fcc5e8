# SPDX-License-Identifier: Apache-2.0
"""What both quickstarts leave behind: `report.html`, `report.json` and the saved models."""

import functools
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from gossamer.errors import ArtifactError
from gossamer.io.artifact import check_destination
from gossamer.ops.timing import contest
from gossamer.report import Page, write_html
from gossamer.running.choice import Chooser, CostTable
from gossamer.running.layers import Explanation
from gossamer.running.layers import compile as compile_model

MODEL_FOLDER = "model"
DENSE_FOLDER = "dense"
HTML_FILE = "report.html"
JSON_FILE = "report.json"
_LAYER_SECONDS = 0.1
# What a page of ours always says, so that another tool's file is not overwritten.
_SIGNATURE = "Written by gossamer"


@dataclass(frozen=True)
class Story:
    """One quickstart: the page, further data for --json, and closing remarks."""

    page: Page
    layers: Explanation
    extra: dict[str, Any]
    remarks: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "title": self.page.title,
            "comparison": self.page.comparison.to_dict(),
            "steps": [list(step) for step in self.page.steps],
            "notes": list(self.page.notes),
            **self.extra,
            "layers": self.layers.to_dicts(),
            "machine": dict(self.page.machine),
        }


def compile_afresh(model: nn.Module, tokens: tuple[int, ...]) -> nn.Module:
    """`gossamer.compile` with times measured now, not taken from the cache."""
    with tempfile.TemporaryDirectory() as folder:
        table = CostTable(Path(folder) / "kernels.json")
        timer = functools.partial(contest, budget_seconds=_LAYER_SECONDS)
        return compile_model(model, tokens=tokens, chooser=Chooser(table, timer))


def sparse_layers_text(layers: Explanation) -> str:
    """How many layers run sparse, in words."""
    names = {row.name for row in layers}
    sparse = {row.name for row in layers if row.is_sparse}
    return f"{len(sparse)} of {len(names)} layers run on sparse kernels"


def check_folder(folder: Path) -> None:
    """Refuse before any work if something in `folder` is not ours to replace."""
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{folder}: exists and is not a folder. Choose another --out.")
    for name in (MODEL_FOLDER, DENSE_FOLDER):
        check_destination(folder / name)
    page = folder / HTML_FILE
    if page.exists() and _SIGNATURE not in page.read_text(encoding="utf-8", errors="replace"):
        raise ArtifactError(
            f"{page}: was not written by gossamer. It was left alone. Choose another --out."
        )


def publish(story: Story, folder: Path) -> Path:
    """Write the data and the page; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(story.document(), indent=2, allow_nan=False)
    (folder / JSON_FILE).write_text(content + "\n", encoding="utf-8")
    return write_html(story.page, folder / HTML_FILE)
