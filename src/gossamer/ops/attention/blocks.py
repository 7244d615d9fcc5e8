# SPDX-License-Identifier: Apache-2.0
"""The blocks of a call, by the text that names them in a graph.

A pattern goes through the custom op as its text, so that an exported graph means the same in
another process. A list that somebody made by hand has no text; it goes as a number.
"""

import atexit
import weakref

import torch

from gossamer.errors import InputError
from gossamer.ops import _native
from gossamer.ops.addresses import address
from gossamer.ops.calls import Handles
from gossamer.patterns.attention import BLOCK, AttentionPattern, BlockList, parse_attention
from gossamer.patterns.attention.sorted_parts import SortedParts

_WHERE = "attention"
Picked = tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]
_HANDLES: Handles[BlockList] = Handles("attention over a list of blocks")
_numbers: "weakref.WeakKeyDictionary[BlockList, int]" = weakref.WeakKeyDictionary()
_native_tiles: "weakref.WeakKeyDictionary[BlockList, tuple[object, ...]]" = (
    weakref.WeakKeyDictionary()
)
_picked: "weakref.WeakKeyDictionary[SortedParts, Picked]" = weakref.WeakKeyDictionary()
# Patterns keep their lists as long as the process; native objects must go before its module.
atexit.register(_native_tiles.clear)

PatternLike = str | AttentionPattern | BlockList | list[str] | tuple[str, ...]


def name_of(pattern: PatternLike) -> str:
    """The text that `lists_of` finds the blocks by."""
    if torch.compiler.is_compiling() and isinstance(pattern, str):
        return pattern  # read when the graph runs: parsing is nothing that could be traced
    if not isinstance(pattern, BlockList):
        return str(parse_attention(pattern))
    if pattern not in _numbers:
        _numbers[pattern] = _HANDLES.add(pattern)
    return f"#{_numbers[pattern]}"


def lists_of(
    name: str, queries: int, keys: int, heads: int, causal: bool, offset: int | None
) -> BlockList:
    """The blocks that a name stands for, for these sizes."""
    if not name.startswith("#"):
        made: BlockList = parse_attention(name).blocks(
            queries, keys, heads=heads, causal=causal, offset=offset
        )
        return made
    blocks = _HANDLES.find(int(name[1:]))
    sizes = blocks.queries, blocks.keys, len(blocks.of_head)
    if sizes[:2] != (queries, keys) or sizes[2] not in (1, heads):
        raise InputError(
            f"{_WHERE}: the list of blocks is for {sizes[0]} queries, {sizes[1]} keys and"
            f" {sizes[2]} heads, got {queries}, {keys} and {heads}. Make it for these sizes."
        )
    if causal:
        raise InputError(
            f"{_WHERE}: a list of blocks says itself which pairs attend; leave causal out, or make"
            " it with blocks(..., causal=True)."
        )
    return blocks


def native_tiles(blocks: BlockList) -> object:
    """The checked blocks as kernels read them; made once."""
    if blocks not in _native_tiles:
        arrays = [
            torch.from_numpy(array)
            for rows in (blocks.by_query, blocks.by_key)
            for array in (rows.starts, rows.columns, rows.masks)
        ]
        masks = torch.from_numpy(blocks.mask_bits.view("int64"))
        at = [address(array, _WHERE) for array in arrays]
        tiles = _native.AttentionTiles(
            blocks.num_lists,
            blocks.queries,
            blocks.keys,
            len(blocks.by_query.columns),
            len(blocks.mask_bits),
            (at[0], at[1], at[2]),
            (at[3], at[4], at[5]),
            address(masks, _WHERE),
        )
        _native_tiles[blocks] = tiles, arrays, masks
    return _native_tiles[blocks][0]


def head_lists(blocks: BlockList, heads: int) -> torch.Tensor:
    """int32, the list of each head; one for all where the list knows one head only."""
    lists = torch.from_numpy(blocks.of_head)
    return lists if len(lists) == heads else lists.expand(heads).contiguous()


def picked(parts: SortedParts) -> Picked:
    """The queries and keys of the far part, and the way back of the queries; None: as they are."""
    if parts not in _picked:
        keys = torch.from_numpy(parts.keys)
        rows = None if parts.queries is None else torch.from_numpy(parts.queries)
        _picked[parts] = rows, keys, None if rows is None else torch.argsort(rows)
    return _picked[parts]


__all__ = [
    "BLOCK",
    "BlockList",
    "PatternLike",
    "head_lists",
    "lists_of",
    "name_of",
    "native_tiles",
    "picked",
]
