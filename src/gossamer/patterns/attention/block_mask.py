# SPDX-License-Identifier: Apache-2.0
"""Lists of blocks as FlexAttention's `BlockMask`, and back."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from gossamer.errors import InputError
from gossamer.patterns.attention.block_list import (
    BLOCK,
    WHOLE,
    Bits,
    BlockList,
    Ints,
    num_blocks,
)


def to_block_mask(blocks: BlockList) -> BlockMask:
    """The same blocks for torch's `flex_attention`, one entry per head, block size 64."""
    rows, columns = blocks.shape
    heads = len(blocks.of_head)
    nothing = len(blocks.mask_bits)
    numbers = np.full((blocks.num_lists, rows, columns), nothing, dtype=np.int64)
    for head in range(heads):
        row, column, mask = blocks.blocks_of(head)
        numbers[blocks.of_head[head], row, column] = np.where(mask == WHOLE, nothing + 1, mask)
    masks = np.concatenate(
        [blocks.masks[:-1], np.zeros((1, BLOCK, BLOCK), bool), blocks.masks[-1:]]
    )
    grid, table = torch.from_numpy(numbers), torch.from_numpy(masks)
    lists = torch.from_numpy(blocks.of_head.astype(np.int64))

    def attends(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return table[grid[lists[h], q // BLOCK, k // BLOCK], q % BLOCK, k % BLOCK]

    by_head = grid[lists]
    partial, full = by_head < nothing, by_head == nothing + 1
    return BlockMask.from_kv_blocks(
        *_counted(partial),
        *_counted(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=attends,
        seq_lengths=(blocks.queries, blocks.keys),
    )


def _counted(kept: Tensor) -> tuple[Tensor, Tensor]:
    """How many columns each row keeps, and which: kept ones first."""
    order = torch.argsort(kept.to(torch.int8), dim=-1, descending=True, stable=True)
    return kept.sum(-1, dtype=torch.int32)[None], order.to(torch.int32)[None]


def from_block_mask(mask: BlockMask) -> BlockList:
    """The list of blocks of a `BlockMask` that is the same for all sequences of a batch."""
    query_size, key_size = mask.BLOCK_SIZE
    if query_size % BLOCK or key_size % BLOCK:
        raise InputError(
            f"block mask: blocks of {query_size} x {key_size}; expected multiples of {BLOCK}. Make"
            f" it with BLOCK_SIZE={BLOCK} or 128."
        )
    if mask.kv_num_blocks.shape[0] != 1:
        raise InputError(
            f"block mask: has {mask.kv_num_blocks.shape[0]} batches; expected 1. Make one mask per"
            " sequence, or give lengths or documents to gossamer.attention."
        )
    queries, keys = mask.seq_lengths
    heads = mask.kv_num_blocks.shape[1]
    lists: list[tuple[Ints, Ints, Ints]] = []
    found: list[Bits] = []
    for head in range(heads):
        row, column, whole = _split(mask, head, query_size // BLOCK, key_size // BLOCK)
        inside = (row < num_blocks(queries)) & (column < num_blocks(keys))
        row, column, whole = row[inside], column[inside], whole[inside]
        order = np.lexsort((column, row))
        row, column, whole = row[order], column[order], whole[order]
        number = np.full(len(row), WHOLE, dtype=np.int64)
        kept = np.ones(len(row), dtype=bool)
        for place in np.flatnonzero(~whole):
            pairs = _evaluated(mask, head, int(row[place]), int(column[place]), queries, keys)
            kept[place] = pairs.any()
            if kept[place] and not pairs.all():
                number[place] = len(found)
                found.append(pairs)
        lists.append((row[kept], column[kept], number[kept]))
    masks = np.stack(found) if found else np.zeros((0, BLOCK, BLOCK), dtype=bool)
    return BlockList.of(queries, keys, list(range(heads)), lists, masks)


def _split(mask: BlockMask, head: int, down: int, across: int) -> tuple[Ints, Ints, Bits]:
    """Blocks of 64 of a head: rows, columns, and whether the mask need not be asked."""
    rows, columns, whole = [], [], []
    for counts, indices, is_whole in (
        (mask.kv_num_blocks, mask.kv_indices, False),
        (mask.full_kv_num_blocks, mask.full_kv_indices, True),
    ):
        if counts is None or indices is None:
            continue
        for row, count in enumerate(counts[0, head].tolist()):
            for column in indices[0, head, row, :count].tolist():
                inner = np.indices((down, across)).reshape(2, -1)
                rows.append(row * down + inner[0])
                columns.append(column * across + inner[1])
                whole.append(np.full(down * across, is_whole))
    if not rows:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, bool)
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(whole)


def _evaluated(mask: BlockMask, head: int, row: int, column: int, queries: int, keys: int) -> Bits:
    """What the mask says about the pairs of a block; beyond the last token it is not asked."""
    inside = torch.arange(BLOCK)
    query, key = row * BLOCK + inside, column * BLOCK + inside
    query, key = query[query < queries], key[key < keys]
    of_pair = torch.vmap(
        torch.vmap(mask.mask_mod, in_dims=(None, None, None, 0)), in_dims=(None, None, 0, None)
    )
    pairs = np.zeros((BLOCK, BLOCK), dtype=bool)
    answer = of_pair(torch.tensor(0), torch.tensor(head), query, key)
    pairs[: len(query), : len(key)] = answer.numpy()
    return pairs
