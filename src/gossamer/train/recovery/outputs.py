# SPDX-License-Identifier: Apache-2.0
"""The tensors of a model's output that two models are compared by.

Legend: B samples, T positions, V classes, D width.
"""

from collections.abc import Mapping
from typing import Any

import torch

from gossamer.errors import InputError


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


def rows_of(tensor: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """[rows, D]: one row per sample or position that is not padding."""
    fits = keep is not None and tensor.ndim > keep.ndim and tensor.shape[: keep.ndim] == keep.shape
    if keep is not None and fits:
        return tensor[keep].reshape(-1, tensor.shape[-1])
    return tensor.reshape(-1, tensor.shape[-1])


def first_tensor(outputs: Any) -> torch.Tensor | None:
    """A tensor, or the first one in a tuple or mapping."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    values = outputs.values() if isinstance(outputs, Mapping) else outputs
    if isinstance(outputs, Mapping | list | tuple):
        return next((value for value in values if isinstance(value, torch.Tensor)), None)
    return None


def _tensor(outputs: Any, name: str, term: str) -> torch.Tensor:
    found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    if found is None and (isinstance(outputs, torch.Tensor) or not isinstance(outputs, Mapping)):
        found = first_tensor(outputs)
    if not isinstance(found, torch.Tensor):
        kind = type(outputs).__name__
        raise InputError(
            f"distillation of {term}: the model's output ({kind}) has no {name}. Give this term"
            " weight 0 and another one its weight."
        )
    return found
