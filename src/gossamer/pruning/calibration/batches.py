# SPDX-License-Identifier: Apache-2.0
"""Calibration batches in the forms users have them, and which of their positions count."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from gossamer.errors import InputError
from gossamer.nn.batch import Batch, call_on_batch

__all__ = ["Batch", "as_batches", "call_on_batch"]


def as_batches(data: Iterable[Any] | None, asker: str) -> list[Batch]:
    """All batches of `data`, held together; a mapping's attention_mask says what is padding."""
    if data is None:
        raise InputError(f"{asker} needs calibration data: give batches with data=[...].")
    if isinstance(data, torch.Tensor | Mapping | str):
        raise InputError(
            f"data: expected a list of batches, got one {type(data).__name__}. Write data=[batch]."
        )
    batches = [item if isinstance(item, Batch) else Batch(item, _padding(item)) for item in data]
    if not batches:
        raise InputError(f"data: is empty, but {asker} needs at least one batch.")
    return batches


def _padding(arguments: Any) -> torch.Tensor | None:
    mask = arguments.get("attention_mask") if isinstance(arguments, Mapping) else None
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2:
        return None
    return mask.bool()
