# SPDX-License-Identifier: Apache-2.0
"""Random batches of bags, and a float64 oracle of what a table does with them."""

import torch

from gossamer.ops.table import Bags, Rounding, Rows
from gossamer.ops.table.quantiser import BITS

WIDTHS = (1, 2, 3, 15, 16, 17, 31, 64, 65, 130, 200)
ROUNDINGS = (
    None,
    *(
        Rounding(bits, granularity, half)
        for bits in BITS
        for granularity in ("table", "row")
        for half in (False, True)
    ),
)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def batch(seed, num_ids=40, num_bags=9, kind="sum", padding=-1):
    """Bags of 0 to 9 ids with many duplicates; kind is sum, mean or weighted."""
    given = generator(seed)
    sizes = torch.randint(0, 10, (num_bags,), generator=given)
    ids = torch.randint(0, num_ids, (int(sizes.sum()),), generator=given) if num_ids else sizes[:0]
    ids = torch.where(torch.rand(len(ids), generator=given) < 0.3, ids // 8, ids)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])[:-1]
    weights = torch.randn(len(ids), generator=given) if kind == "weighted" else None
    return Bags.of(ids, offsets, weights, "mean" if kind == "mean" else "sum", padding)


def floats(seed, num_rows, width, spread=1.0):
    return torch.randn(num_rows, width, generator=generator(seed)) * spread


def rows_of(weight, rounding):
    """The table with its exact scale."""
    if rounding is None:
        return Rows(weight, weight.shape[1])
    scales = None if rounding.by_row else rounding.scales(weight)
    return Rows(weight, weight.shape[1], rounding, scales)


def rounded(weight, rounding):
    """What lookups see, in float64 from the float32 scale; the grid itself is exact there."""
    if rounding is None:
        return weight.double()
    scales = rounding.scales(weight)[:, None]
    inverse = (1 / scales.double()).float()
    codes = (weight * inverse).round().clamp(rounding.lowest, rounding.highest)
    return codes.double() * scales.double()


def pooled(table, bags):
    """The bags in float64 and the sum of magnitudes, by one loop over bags."""
    out = torch.zeros(bags.num_bags, table.shape[1], dtype=torch.float64)
    size = out.clone()
    for bag in range(bags.num_bags):
        first = bags.bag_size * bag if bags.offsets is None else int(bags.offsets[bag])
        last = first + bags.bag_size if bags.offsets is None else int(bags.offsets[bag + 1])
        count = 0
        for position in range(first, last):
            id = int(bags.ids[position])
            if id == bags.padding:
                continue
            factor = 1.0 if bags.weights is None else float(bags.weights[position])
            out[bag] += factor * table[id].double()
            size[bag] += (factor * table[id].double()).abs()
            count += 1
        if bags.mean and count:
            out[bag] /= count
            size[bag] /= count
    return out, size


def row_gradient(grad, bags, num_rows):
    """The gradient of all rows in float64."""
    out = torch.zeros(num_rows, grad.shape[1], dtype=torch.float64)
    for bag in range(bags.num_bags):
        first = bags.bag_size * bag if bags.offsets is None else int(bags.offsets[bag])
        last = first + bags.bag_size if bags.offsets is None else int(bags.offsets[bag + 1])
        counted = [p for p in range(first, last) if int(bags.ids[p]) != bags.padding]
        for position in counted:
            factor = 1.0 if bags.weights is None else float(bags.weights[position])
            factor /= len(counted) if bags.mean else 1
            out[int(bags.ids[position])] += factor * grad[bag].double()
    return out
