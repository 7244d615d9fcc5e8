# SPDX-License-Identifier: Apache-2.0
"""What a call adds to its pattern: ranges of keys (padding, documents) and biases by distance.

A range is the keys from..to - 1 that a query may see. Padding and packed documents both are ranges,
so kernels know one thing. A bias depends on the distance alone, and takes memory of the tokens, not
of the pairs.

Legend: B batch, N queries, H heads, D distances.
"""

import math

import torch
from torch import Tensor

from gossamer.errors import InputError

_WHERE = "attention"


def ranges_of(
    lengths: Tensor | None,
    documents: Tensor | None,
    batch: int,
    queries: int,
    keys: int,
    offset: int,
) -> Tensor | None:
    """int32 [B, N, 2], or None if every query may see every key."""
    if lengths is None and documents is None:
        return None
    device = (lengths if lengths is not None else documents).device  # type: ignore[union-attr]
    place = torch.arange(queries, device=device).expand(batch, queries)
    start, end = torch.zeros_like(place), torch.full_like(place, keys)
    if documents is not None:
        start, end = _documents(documents, batch, queries, keys)
    if lengths is not None:
        if lengths.shape != (batch,) or lengths.is_floating_point():
            raise InputError(
                f"{_WHERE}: lengths must be {batch} whole numbers, one for each sequence, got"
                f" {lengths.dtype} {list(lengths.shape)}."
            )
        length = lengths.to(torch.int64)[:, None]
        end = torch.minimum(end, length)
        # What stands behind the end of a sequence attends to nothing.
        end = torch.where(place + offset < length, end, start)
    return torch.stack([start, torch.maximum(end, start)], dim=-1).to(torch.int32)


def _documents(ids: Tensor, batch: int, queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """First key and one behind the last of the document of each query."""
    if queries != keys or ids.shape not in ((keys,), (batch, keys)) or ids.is_floating_point():
        raise InputError(
            f"{_WHERE}: documents must be whole numbers of shape [{batch}, {keys}] or [{keys}] with"
            f" as many queries as keys, got {ids.dtype} {list(ids.shape)} for {queries} queries."
        )
    ids = ids.expand(batch, keys)
    place = torch.arange(keys, device=ids.device).expand(batch, keys)
    change = torch.ones_like(ids, dtype=torch.bool)
    change[:, 1:] = ids[:, 1:] != ids[:, :-1]
    start = torch.where(change, place, 0).cummax(dim=1).values
    ends = torch.ones_like(change)
    ends[:, :-1] = change[:, 1:]
    last = torch.where(ends, place, keys).flip(1).cummin(dim=1).values.flip(1)
    return start, last + 1


def alibi_slopes(heads: int) -> Tensor:
    """The published slopes: powers of 2^(-8 / heads), between them for other numbers of heads."""
    nearest = 1 << int(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / nearest) for h in range(nearest)]
    slopes += [2 ** (-8 * (2 * h + 1) / (2 * nearest)) for h in range(heads - nearest)]
    return torch.tensor(slopes)


def alibi_bias(slopes: Tensor, queries: int, keys: int, offset: int | None = None) -> Tensor:
    """-slope * distance for each distance query - key, [H, queries + keys - 1]."""
    offset = keys - queries if offset is None else offset
    distance = torch.arange(1 - keys, queries, device=slopes.device) + offset
    return -slopes[:, None] * distance.abs().to(slopes.dtype)
