# SPDX-License-Identifier: Apache-2.0
"""The arrays that nm, vnm and nmg had in files before choices took their fewest bits.

Written out here apart from the package, which reads them and no longer writes them.
"""

import torch

from gossamer.formats import encode


def older_nm(matrix):
    nm, (rows, columns) = matrix.pattern, matrix.shape
    mask = matrix.mask().view(rows, columns // nm.group, nm.group)
    bits, lines = (4 if nm.group <= 16 else 8), []
    for row in mask:
        fields = [place for group in row for place in group.nonzero().flatten().tolist()]
        number = sum(field << bits * index for index, field in enumerate(fields))
        lines.append(list(number.to_bytes(-(-len(fields) * bits // 8), "little")))
    values = matrix.values.view(rows, columns // nm.group, nm.num_kept)
    return {"values": values, "positions": torch.tensor(lines, dtype=torch.uint8)}


def older_vnm(matrix):
    vnm, (rows, columns) = matrix.pattern, matrix.shape
    mask = matrix.mask().view(rows, columns // vnm.group, vnm.group)
    blocks = []
    for start in range(0, rows, vnm.block_rows):
        used = mask[start : start + vnm.block_rows].any(dim=0)
        blocks.append([])
        for group in used:
            chosen = group.nonzero().flatten().tolist()
            spare = [column for column in range(vnm.group) if column not in chosen]
            blocks[-1].append(sorted(chosen + spare[: 4 - len(chosen)]))
    arrays = {name: encode(matrix, "vnm")[1][name] for name in ("values", "positions")}
    return {**arrays, "columns": torch.tensor(blocks, dtype=torch.uint8)}


def older_nmg(matrix):
    nmg = matrix.pattern
    ids = nmg.row_pattern_ids(matrix.mask())
    places = ids.sort(dim=-1, stable=True).indices
    grid = (*ids.shape[:2], nmg.num_row_patterns, nmg.repeats)
    return {
        "values": encode(matrix, "nmg")[1]["values"],
        "columns": places.view(grid).to(torch.int16),
    }


OLDER = {"nm": older_nm, "vnm": older_vnm, "nmg": older_nmg}
