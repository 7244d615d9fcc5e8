# SPDX-License-Identifier: Apache-2.0
"""What one rank has of a batch, and of chance."""

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from gossamer.data.batches import generator_of
from gossamer.errors import InputError


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
    each = total // count

    def cut(leaf: Any) -> Any:
        is_tensor = isinstance(leaf, torch.Tensor)
        return leaf[part * each : (part + 1) * each] if is_tensor else leaf

    return tree_map(cut, batch)


class own_random:  # noqa: N801  (used like a function)
    """Draws within differ from rank to rank; afterwards generators are equal again."""

    def __init__(self, seed: int, number: int, part: int) -> None:
        self._seed = generator_of(seed, number, part).initial_seed()

    def __enter__(self) -> None:
        self._before = torch.get_rng_state()
        torch.manual_seed(self._seed)

    def __exit__(self, *_: object) -> None:
        torch.set_rng_state(self._before)
