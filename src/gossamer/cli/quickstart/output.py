# SPDX-License-Identifier: Apache-2.0
"""What both quickstarts show and leave behind: `report.html`, `report.json` and the saved models.

They compare dense, pruned and dense int8 side by side: quality, bytes and times, measured now.
Dense int8, the rival that a sparse model has to beat, is a model of gossamer's own: rounded, saved,
loaded and compiled like the pruned one.
"""

import copy
import functools
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError
from gossamer.io import load
from gossamer.io.artifact.destination import check_destination
from gossamer.ops.timing import contest, fair_clock, race, stopwatch
from gossamer.ops.timing.load import LoadWatch
from gossamer.recipes import make_recipe
from gossamer.report import Comparison, Figure, Page, write_html
from gossamer.running.choice import Chooser, CostTable
from gossamer.running.layers import Explanation
from gossamer.running.layers import compile as compile_model
from gossamer.runs import prune, sparsify

MODEL_FOLDER = "model"
DENSE_FOLDER = "dense"
INT8_FOLDER = "dense-int8"
HTML_FILE = "report.html"
# What a page of ours always says, so that another tool's file is not overwritten.
_SIGNATURE = "Written by gossamer"


@dataclass(frozen=True)
class Story:
    """One quickstart: the page, further data for --json, and closing remarks."""

    page: Page
    extra: dict[str, Any]
    remarks: list[str]

    def document(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "title": self.page.title,
            "comparison": self.page.comparison.to_dict(),
            "steps": self.page.steps,
            "notes": self.page.notes,
            **self.extra,
            "layers": [asdict(row) for row in self.page.layers],
            "machine": dict(self.page.machine),
        }


def check_folder(folder: Path) -> None:
    """Refuse before any work if something in `folder` is not ours to replace."""
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{folder}: exists and is not a folder. Choose another --out.")
    for name in (MODEL_FOLDER, DENSE_FOLDER, INT8_FOLDER):
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
    (folder / "report.json").write_text(content + "\n", encoding="utf-8")
    return write_html(story.page, folder / HTML_FILE)


NOTE = "dense int8 holds every weight as one byte; it was saved, loaded and compiled as well."
_LAYER_SECONDS = 0.1


def compile_afresh(
    model: nn.Module, tokens: tuple[int, ...], *, precision: str = "fp32"
) -> nn.Module:
    """`gossamer.compile` with times measured now, not taken from the cache."""
    with tempfile.TemporaryDirectory() as folder:
        table = CostTable(Path(folder) / "kernels.json")
        timer = functools.partial(contest, budget_seconds=_LAYER_SECONDS)
        return compile_model(
            model, tokens=tokens, precision=precision, chooser=Chooser(table, timer)
        )


def sparse_layers_text(layers: Explanation) -> str:
    """How many layers run sparse, in words."""
    names = {row.name for row in layers}
    sparse = {row.name for row in layers if row.is_sparse}
    return f"{len(sparse)} of {len(names)} layers run on sparse kernels"


def dense_int8(model: nn.Module, path: Path, tokens: tuple[int, ...]) -> nn.Module:
    """The dense model in int8: rounded, saved as `path`, loaded and compiled."""
    stage = {"round": {"layers": "int8", "embeddings": "int8"}}
    recipe = make_recipe({"gossamer": 1, "stages": [stage]}, "gossamer quickstart")
    prune(copy.deepcopy(model), recipe, out=path, timed=False)
    return compile_int8(load(path), tokens)


def compile_int8(model: nn.Module, tokens: tuple[int, ...]) -> nn.Module:
    """A dense model on the int8 kernels that measure fastest."""
    # `compile` leaves layers without a mask alone; this mask keeps everything.
    sparsify(model, sparsity=0.0)
    return compile_afresh(model, tokens, precision="int8")


def compare(
    models: tuple[nn.Module, nn.Module, nn.Module],
    quality: tuple[str, float, Callable[[nn.Module], float]],
    sizes: tuple[int, int, int],
    inputs: Mapping[str, torch.Tensor],
    seconds: float,
) -> Comparison:
    """The figures of three models.

    Args:
        models: dense, pruned and compiled, dense int8 and compiled.
        quality: its name, the dense model's, and what measures it.
        sizes: bytes of each on disk.
        inputs: to time with, by what a figure says of them.
        seconds: for a race of all three.
    """
    name, best, measure = quality
    scores = (best, *map(measure, models[1:]))
    figures = [Figure(name, "score", scores), Figure("bytes on disk", "bytes", sizes)]
    clock = fair_clock()
    for title, x in inputs.items():
        watch = LoadWatch()
        calls = [stopwatch(functools.partial(forward, model, x), clock) for model in models]
        times = race(calls, budget_seconds=seconds, max_rounds=2000, watch=watch)
        values = tuple(us / 1000 for us in times)
        load = watch.load()
        doubt = "" if load.is_quiet else str(load)
        figures.append(Figure(f"ms, {title}", "ms", values, doubt))
    return Comparison(("dense", "pruned", "dense int8"), tuple(figures))


def forward(model: nn.Module, x: torch.Tensor) -> Any:
    """What the model gives."""
    with torch.inference_mode():
        return model(x)
