# SPDX-License-Identifier: Apache-2.0
"""A task: batches, the loss of a batch, how good a model is, and the sizes a model must have."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from gossamer.data.batches import Batches

Loss = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Task:
    """Everything about a training run but the model, unless `model` is given.

    Attributes:
        name: for people.
        batches: training data by number.
        loss: of a model on a batch; a tensor, or a tensor and numbers to log.
        evaluate: named numbers of a model on data it was not trained on; the first one is the
            quality. None if there is no such data.
        tokens: activation rows of a Linear in one batch.
        sizes: what a model is built from: inputs, classes, vocabulary, channels, side, rows.
        example: an input of the model, for measuring convolutions.
        digest: of the data, so that a resumed run notices other data.
        beside: files that go with the artifact, such as tokenizer.json.
        model: the model itself, where a user's function makes one.
        higher_is_better: whether a larger first number is a better one.
        report: named numbers on data that nothing was chosen by, measured once at the end.
        adopt: told of the model before it is trained; refuses one that was made for other data.
        notes: what people should know of the data, such as rows that were left out.
    """

    name: str
    batches: Batches
    loss: Loss
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None
    tokens: int = 1
    sizes: Mapping[str, Any] = field(default_factory=dict)
    example: torch.Tensor | None = None
    digest: str = ""
    beside: Mapping[str, bytes] = field(default_factory=dict)
    model: nn.Module | None = None
    higher_is_better: bool = True
    report: Callable[[nn.Module], Mapping[str, float]] | None = None
    adopt: Callable[[nn.Module], None] | None = None
    notes: tuple[str, ...] = ()


def classifier_quality(
    model: nn.Module, batches: Iterable[tuple[tuple[torch.Tensor, ...], torch.Tensor]]
) -> dict[str, float]:
    """Accuracy and mean loss of a classifier over (inputs, labels)."""
    right, total, count = 0, 0.0, 0
    for inputs, y_B in batches:
        logits = model(*inputs).float()
        right += int((logits.argmax(-1) == y_B).sum())
        total += float(cross_entropy(logits, y_B, reduction="sum"))
        count += len(y_B)
    return {"accuracy": right / count, "eval_loss": total / count}


def tensors_digest(*tensors: torch.Tensor) -> str:
    """sha256 of dtypes, shapes and bytes: what data a run was trained on."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
