# SPDX-License-Identifier: Apache-2.0
"""The same attention in torch alone, a row of blocks at a time: other dtypes, other devices.

Keys of a row's blocks are gathered and multiplied; the mask of those blocks alone exists. Any
precision, and differentiable as often as one likes.

Legend: B batch, H heads, n queries of a row, m keys of its blocks.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.ops.attention.blocks import BLOCK, BlockList

_MOST = (1 << 32) - 1


class Extras(NamedTuple):
    """What a call adds to its pattern; as in `native_op`."""

    ranges: Tensor | None
    bias: Tensor | None
    positions: Tensor | None
    seed: Tensor | None
    scale: float
    cap: float
    dropout: float


def by_torch(
    q: Tensor, k: Tensor, v: Tensor, blocks: BlockList, extras: Extras
) -> tuple[Tensor, Tensor]:
    """The result [B, H, N, V] and lse [B, H, N]."""
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    rows = [
        _rows_of_head((q[:, h], k[:, h // group], v[:, h // group]), blocks, (h, heads), extras)
        for h in range(heads)
    ]
    outs, sums = zip(*rows, strict=True)
    return torch.stack(outs, dim=1), torch.stack(sums, dim=1)


def _rows_of_head(
    tensors: tuple[Tensor, Tensor, Tensor],
    blocks: BlockList,
    head_of: tuple[int, int],
    extras: Extras,
) -> tuple[Tensor, Tensor]:
    q, k, v = tensors
    head, heads = head_of
    ranges, bias, positions, seed, scale, cap, dropout = extras
    known = head if len(blocks.of_head) > 1 else 0
    row, column, mask = blocks.blocks_of(known)
    outs, sums = [], []
    for first in range(0, q.shape[1], BLOCK):
        i = torch.arange(first, min(first + BLOCK, q.shape[1]), device=q.device)
        own = row == first // BLOCK
        columns = torch.from_numpy(column[own]).to(q.device)
        j = (columns[:, None] * BLOCK + torch.arange(BLOCK, device=q.device)).reshape(-1)
        pairs = torch.from_numpy(blocks.masks[mask[own]].transpose(1, 0, 2).reshape(BLOCK, -1))
        attends = pairs.to(q.device)[: len(i), j < k.shape[1]]
        j = j[j < k.shape[1]]
        seen = attends.expand(q.shape[0], *attends.shape)
        if ranges is not None:
            limits = ranges[:, i]
            seen = seen & (j >= limits[..., :1]) & (j < limits[..., 1:])
        if positions is not None:
            seen = seen & (positions[:, head, j][:, None] <= positions[:, head, i][..., None])
        score = q[:, i] @ k[:, j].transpose(1, 2) * scale
        if cap > 0:
            score = cap * torch.tanh(score / cap)
        if bias is not None:
            score = score + bias[head, i[:, None] - j + k.shape[1] - 1]
        score = score.masked_fill(~seen, float("-inf"))
        is_empty = ~seen.any(-1)
        lse = torch.logsumexp(score.masked_fill(is_empty[..., None], 0.0), -1)
        weight = torch.exp(score - lse[..., None]).masked_fill(is_empty[..., None], 0.0)
        if seed is not None and dropout:
            keep = [
                kept_pairs(int(seed), b * heads + head, i, j, dropout) for b in range(q.shape[0])
            ]
            weight = weight * torch.stack(keep) / (1 - dropout) if keep else weight
        outs.append(weight.to(v.dtype) @ v[:, j])
        sums.append(lse.masked_fill(is_empty, float("-inf")))
    if not outs:
        return q.new_empty(q.shape[0], 0, v.shape[-1]), q.new_empty(q.shape[0], 0)
    return torch.cat(outs, dim=1), torch.cat(sums, dim=1)


def kept_pairs(seed: int, head: int, i: Tensor, j: Tensor, dropout: float) -> Tensor:
    """Which pairs dropout keeps, [n, m]: the same bits as in native/attention/attention.hpp."""
    wide = (1 << 64) - 1
    x = (seed + 0x9E3779B97F4A7C15 * (head + 1)) & wide
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & wide
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & wide
    x ^= x >> 31
    rows = _mixed((i + (x & _MOST)) & _MOST)
    columns = (j * 0x9E3779B9 + (x >> 32)) & _MOST
    return _mixed(rows[:, None] ^ columns) > int(dropout * (1 << 32))


def _mixed(x: Tensor) -> Tensor:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MOST
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MOST
    return x ^ (x >> 16)
