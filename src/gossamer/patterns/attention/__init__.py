# SPDX-License-Identifier: Apache-2.0
"""Which pairs of query and key attend: a pattern's text, and the list of blocks it stands for.

`parse_attention("window:512+global:64")` makes an `AttentionPattern`; its `blocks(...)` is a
`BlockList` of blocks of 64 queries x 64 keys, made directly: no mask of all pairs ever exists. What
a pattern says about single tokens stays exact, as blocks that are kept in part carry a mask.
`to_block_mask` and `from_block_mask` translate to and from torch's FlexAttention; `draw_blocks` is
the picture.

`key_rules` is a room of its own: which keys a decoder reads while it writes.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.patterns.attention.block_list import BLOCK, BlockList
    from gossamer.patterns.attention.block_mask import from_block_mask, to_block_mask
    from gossamer.patterns.attention.picture import draw_blocks
    from gossamer.patterns.attention.text import AttentionPattern, parse_attention

__all__ = [
    "BLOCK",
    "AttentionPattern",
    "BlockList",
    "draw_blocks",
    "from_block_mask",
    "parse_attention",
    "to_block_mask",
]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "BLOCK": "block_list",
        "AttentionPattern": "text",
        "BlockList": "block_list",
        "draw_blocks": "picture",
        "from_block_mask": "block_mask",
        "parse_attention": "text",
        "to_block_mask": "block_mask",
    },
)
