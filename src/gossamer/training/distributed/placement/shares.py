# SPDX-License-Identifier: Apache-2.0
"""What one rank has of a batch, and of chance."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from gossamer.data import generator_of
from gossamer.errors import InputError
from gossamer.training.distributed.pipeline.microbatches import pieces


def num_samples(batch: Any) -> int:
    """Samples of a batch: the first dimension of all its tensors."""
    sizes = {leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)}
    if len(sizes) != 1:
        raise InputError(
            f"mesh: a batch must be tensors with samples along their first dimension; found sizes"
            f" {sorted(sizes)}."
        )
    return int(sizes.pop())


def cut_batch(batch: Any, part: int, count: int) -> Any:
    """Part number `part` of `count` equal ones."""
    total = num_samples(batch)
    if total % count:
        raise InputError(
            f"batch: {total} samples cannot be shared by {count} data and shard ranks. Use a batch"
            f" that {count} divides."
        )
    return pieces(batch, count)[part]


@contextmanager
def own_random(seed: int, number: int, part: int) -> Iterator[None]:
    """Draws within differ from rank to rank; afterwards generators are equal again."""
    before = torch.get_rng_state()
    torch.manual_seed(generator_of(seed, number, part).initial_seed())
    try:
        yield
    finally:
        torch.set_rng_state(before)
