# SPDX-License-Identifier: Apache-2.0
"""From rows to chances, with the vocabularies and statistics that the model was trained with."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gossamer.data.clicks import FEATURES_FILE, ClickRows, read_features
from gossamer.errors import KernelError


class ClickScorer:
    """A model and its features.

    Args:
        model: of the zoo, compiled or not, or one that takes the same arguments.
        beside: files beside its weights, by name; features.arrays is needed.
        name: of the model, for messages.
    """

    def __init__(self, model: nn.Module, beside: Mapping[str, bytes], name: str) -> None:
        self.features = read_features(beside.get(FEATURES_FILE), name)
        self.features.check_model(model, name)
        self._model = model

    @staticmethod
    def fits(beside: Mapping[str, bytes]) -> bool:
        """Whether a model with these files beside it scores rows."""
        return FEATURES_FILE in beside

    def read(self, rows: Sequence[Any], where: str = "rows") -> list[ClickRows]:
        """JSON objects with columns by name, each as a block of one row."""
        read = self.features.read_objects(rows, where)
        return read.singles()

    def chances(self, rows: Sequence[ClickRows]) -> torch.Tensor:
        """float32 [N], the chance of a click for all rows of all blocks."""
        if not rows:
            return torch.zeros(0)
        with torch.inference_mode():
            logits = self._model(*ClickRows.joined(rows).inputs()).float()
        if not bool(torch.isfinite(logits).all()):
            raise KernelError(
                "the model gives logits that are NaN or infinite. Its weights are damaged, or its"
                " activations overflow."
            )
        return torch.sigmoid(logits)

    def score_file(self, path: Path) -> Iterator[torch.Tensor]:
        """Chances of the rows of a .csv, .tsv, .txt or .jsonl file, in order, block by block."""
        for rows in self.features.read_file(path):
            yield self.chances([rows])
