# SPDX-License-Identifier: Apache-2.0
"""Texts to labels with a sequence-classification model.

Legend: B texts, C classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gossamer.data import padded
from gossamer.errors import InputError
from gossamer.running.text.tokens import TextTokens

_CLASS = "ForSequenceClassification"


class Classifier:
    """A classification model of transformers and its tokenizer. May be called from threads.

    Scores are chances that add up to 1 over the classes; of a multi-label model, a chance for each;
    of a model with one output, the number itself.

    Args:
        model: compiled or not.
        beside: files beside its weights, by name; tokenizer.json is needed.
    """

    def __init__(self, model: nn.Module, beside: Mapping[str, bytes]) -> None:
        if not self.fits(model):
            raise InputError(f"{type(model).__name__}: expected a model that ends with {_CLASS}.")
        config: Any = model.config
        self._model = model
        self.tokens = TextTokens(beside, config)
        self._padding = int(config.pad_token_id or 0)
        self.labels = tuple(str(config.id2label[i]) for i in range(config.num_labels))
        self._several = config.problem_type == "multi_label_classification"

    @staticmethod
    def fits(model: nn.Module) -> bool:
        """Whether `model` gives one row of class logits per text."""
        return type(model).__name__.endswith(_CLASS)

    def scores(self, ids: Sequence[torch.Tensor]) -> torch.Tensor:
        """Scores float32 [B, C] of token numbers, in one call of the model."""
        with torch.inference_mode():
            logits_BC: torch.Tensor = self._model(**padded(ids, self._padding)).logits.float()
            if self._several:
                return torch.sigmoid(logits_BC)
            return logits_BC if len(self.labels) == 1 else logits_BC.softmax(dim=1)
