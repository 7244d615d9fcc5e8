# SPDX-License-Identifier: Apache-2.0
"""What both quickstarts show and leave behind: `report.html`, `report.json` and the saved models.

They compare dense, pruned and dense int8 side by side: quality, bytes and times, measured now.
Dense int8, the rival that a sparse model has to beat, is torch's dynamic quantization.
"""

import copy
import functools
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError
from gossamer.io.artifact.destination import check_destination
from gossamer.ops.timing import contest, duel
from gossamer.report import Comparison, Figure, Page, write_html
from gossamer.running.choice import Chooser, CostTable
from gossamer.running.layers import Explanation
from gossamer.running.layers import compile as compile_model

MODEL_FOLDER = "model"
DENSE_FOLDER = "dense"
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
    (folder / "report.json").write_text(content + "\n", encoding="utf-8")
    return write_html(story.page, folder / HTML_FILE)


NOTE = (
    "dense int8 is torch's dynamic quantization of all Linears; its bytes are counted (one per"
    " weight), not written."
)
_LAYER_SECONDS = 0.1


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


def compare(
    dense: nn.Module,
    fast: nn.Module,
    quality: tuple[str, float, Callable[[nn.Module], float]],
    sizes: tuple[int, int],
    inputs: Mapping[str, torch.Tensor],
    seconds: tuple[float, float],
) -> Comparison:
    """The figures of dense, pruned and dense int8.

    Args:
        dense: the model as it was.
        fast: the pruned one, compiled.
        quality: its name, the dense model's, and what measures it.
        sizes: bytes of both on disk.
        inputs: to time with, by what a figure says of them.
        seconds: for dense against pruned, and for pruned against int8.
    """
    name, best, measure = quality
    rival = dense_int8(dense)
    scores = (best, measure(fast), None if rival is None else measure(rival))
    figures = [
        Figure(name, "score", scores),
        Figure("bytes on disk", "bytes", (*sizes, None if rival is None else int8_bytes(dense))),
    ]
    for title, x in inputs.items():
        pruned = functools.partial(forward, fast, x)
        times = duel(
            functools.partial(forward, dense, x),
            pruned,
            budget_seconds=seconds[0],
            max_rounds=2000,
        )
        rival_ms = None
        if rival is not None:
            both = duel(pruned, functools.partial(forward, rival, x), budget_seconds=seconds[1])
            rival_ms = both.second_us / 1000
        values = (times.first_us / 1000, times.second_us / 1000, rival_ms)
        figures.append(Figure(f"ms, {title}", "ms", values, times.doubt))
    return Comparison(("dense", "pruned", "dense int8"), tuple(figures))


def forward(model: nn.Module, x: torch.Tensor) -> Any:
    """What the model gives."""
    with torch.inference_mode():
        return model(x)


def dense_int8(model: nn.Module) -> nn.Module | None:
    """A copy with int8 Linears; None where this torch or CPU cannot do it."""
    quantize = getattr(getattr(torch.ao, "quantization", None), "quantize_dynamic", None)
    if quantize is None:
        return None
    with warnings.catch_warnings():
        # torch announces that this moves to another package; here it is only a yardstick.
        warnings.simplefilter("ignore")
        try:
            made: nn.Module = quantize(copy.deepcopy(model), {nn.Linear}, dtype=torch.qint8)
        except (RuntimeError, NotImplementedError):
            return None
    return made.eval()


def int8_bytes(model: nn.Module) -> int:
    """Bytes of a dense model whose Linear weights take one byte each, and one scale per row."""
    total = sum(param.nbytes for param in model.parameters())
    for module in model.modules():
        if isinstance(module, nn.Linear):
            weight = module.weight
            total += weight.numel() + module.out_features * weight.element_size() - weight.nbytes
    return total
