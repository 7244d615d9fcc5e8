# SPDX-License-Identifier: Apache-2.0
"""A list of blocks as an SVG: whole blocks dark, blocks that are kept in part lighter."""

import itertools

import numpy as np

from gossamer.patterns.attention.block_list import WHOLE, BlockList

_MOST_CELLS = 128
_COLOURS = {1: "#8fb8de", 2: "#1f4e79"}


def draw_blocks(blocks: BlockList, head: int = 0, size: int = 384, title: str = "") -> str:
    """The SVG of one head; long sequences are drawn in cells of several blocks.

    Args:
        blocks: the list.
        head: whose blocks are drawn.
        size: of the square, in pixels.
        title: said below it.
    """
    rows, columns = blocks.shape
    step = max(-(-max(rows, columns, 1) // _MOST_CELLS), 1)
    height, width = -(-rows // step), -(-columns // step)
    cells = np.zeros((height, width), dtype=int)
    row, column, mask = blocks.blocks_of(head)
    np.maximum.at(cells, (row // step, column // step), np.where(mask == WHOLE, 2, 1))
    side = size / max(height, width, 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size}" height="{size + 20}"'
        f' viewBox="0 0 {size} {size + 20}" role="img">',
        f'<rect width="{width * side:g}" height="{height * side:g}" fill="#f4f4f4"/>',
    ]
    for y in range(height):
        edges = np.flatnonzero(np.diff(cells[y], prepend=-1, append=-1))
        for start, end in itertools.pairwise(edges.tolist()):
            kind = int(cells[y, start])
            if kind:
                parts.append(
                    f'<rect x="{start * side:g}" y="{y * side:g}" width="{(end - start) * side:g}"'
                    f' height="{side:g}" fill="{_COLOURS[kind]}"/>'
                )
    said = f"{title} " if title else ""
    parts.append(
        f'<text x="0" y="{size + 14}" font-family="sans-serif" font-size="12">{_escaped(said)}'
        f"{blocks.queries} x {blocks.keys}, {blocks.density:.1%} of pairs</text></svg>"
    )
    return "".join(parts)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
