# SPDX-License-Identifier: Apache-2.0
"""The tensors of a model's output that two models are compared by.

Legend: B samples, T positions, V classes, D width.
"""

from collections.abc import Mapping
from typing import Any

import torch

from gossamer.errors import InputError
from gossamer.nn.batch import first_tensor, named_tensor


def logits_of(outputs: Any) -> torch.Tensor:
    """Logits [..., V]: the output of that name, or a bare tensor."""
    return _tensor(outputs, "logits", "logits")


def vectors_of(outputs: Any, keep: torch.Tensor | None) -> torch.Tensor:
    """One vector [B, D] per sample: the mean of the last hidden state over what is no padding.

    A bare tensor [B, D] is taken as it is.
    """
    hidden = _tensor(outputs, "last_hidden_state", "embeddings")
    if hidden.ndim == 2:
        return hidden
    if hidden.ndim != 3:
        raise InputError(
            "distillation of embeddings: expected outputs [B, T, D] or [B, D], got"
            f" {list(hidden.shape)}."
        )
    if keep is None:
        return hidden.mean(dim=1)
    keep_BT1 = keep.unsqueeze(-1).to(hidden.dtype)
    pooled_BD: torch.Tensor = (hidden * keep_BT1).sum(1) / keep_BT1.sum(1).clamp(min=1)
    return pooled_BD


def _tensor(outputs: Any, name: str, term: str) -> torch.Tensor:
    found = named_tensor(outputs, name)
    if found is None and not isinstance(outputs, Mapping):
        found = first_tensor(outputs)
    if found is None:
        kind = type(outputs).__name__
        raise InputError(
            f"distillation of {term}: the model's output ({kind}) has no {name}. Give this term"
            " weight 0 and another one its weight."
        )
    return found
