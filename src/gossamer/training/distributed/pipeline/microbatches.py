# SPDX-License-Identifier: Apache-2.0
"""A batch in pieces along the first dimension of its tensors, whatever holds them."""

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from gossamer.errors import InputError


def batch_size(batch: Any) -> int:
    """Length of the first dimension, which all tensors of a batch share."""
    tensors = [leaf for leaf in tree_flatten(batch)[0] if isinstance(leaf, torch.Tensor)]
    sizes = {tensor.shape[0] if tensor.ndim else None for tensor in tensors}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None:
        found = ", ".join(str(list(tensor.shape)) for tensor in tensors) or "no tensors"
        raise InputError(
            "pipeline: all tensors of a batch must have the samples as their first dimension; got"
            f" {found}."
        )
    return size


def check_batch(batch: Any, num_microbatches: int) -> None:
    """Refuse a batch that does not make equal microbatches."""
    size = batch_size(batch)
    if size == 0 or size % num_microbatches:
        raise InputError(
            f"pipeline: a batch of {size} samples cannot be cut into {num_microbatches} equal"
            " microbatches. Change the batch size or the number of microbatches."
        )


def pieces(batch: Any, most: int) -> list[Any]:
    """The batch as up to `most` parts of about equal size; what is no tensor goes to all."""
    count = max(1, min(most, batch_size(batch)))
    leaves, tree = tree_flatten(batch)
    cut = [
        leaf.tensor_split(count) if isinstance(leaf, torch.Tensor) else (leaf,) * count
        for leaf in leaves
    ]
    return [tree_unflatten([parts[index] for parts in cut], tree) for index in range(count)]
