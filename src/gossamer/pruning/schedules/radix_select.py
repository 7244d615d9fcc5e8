# SPDX-License-Identifier: Apache-2.0
"""The exact top k of scores that lie on several processes, without gathering them.

The bits of a non-negative float32, read as an integer, rank like the float. So the threshold is
found digit by digit: four histograms of 256 bins, 2 KB each, are all that crosses the network.
Ties are cut in the order (rank, tensor, position), so that exactly k are kept.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed as dist

from gossamer.errors import InputError
from gossamer.patterns.selection import kept_count

_BITS, _BINS = 8, 256


def keep_largest_across(
    scores: Sequence[torch.Tensor], density: float, group: Any = None
) -> list[torch.Tensor]:
    """Bool masks of the largest scores of all processes of `group` together.

    Args:
        scores: float32 or narrower, at least 0, without NaN; those of this process.
        density: which part is kept of all scores everywhere.
        group: a process group; None: this process alone.
    """
    codes = [_code(score) for score in scores]
    device = codes[0].device if codes else torch.device("cpu")

    def summed(tensor: torch.Tensor) -> torch.Tensor:
        if group is not None:
            dist.all_reduce(tensor, group=group)
        return tensor

    total = summed(torch.tensor(sum(code.numel() for code in codes), device=device))
    # At the end: the code of the smallest kept score, and how many of its ties are kept.
    threshold, left = 0, kept_count(density, int(total))
    for shift in (24, 16, 8, 0):
        counts = torch.zeros(_BINS, dtype=torch.int64, device=device)
        for code in codes:
            here = code[(code >> (shift + _BITS)) == threshold]
            counts += torch.bincount((here >> shift) & (_BINS - 1), minlength=_BINS)
        from_top = summed(counts).flip(0).cumsum(0)
        place = int((from_top < left).sum())
        left -= int(from_top[place - 1]) if place else 0
        threshold = (threshold << _BITS) | (_BINS - 1 - place)
    ties = [code == threshold for code in codes]
    if group is not None:
        # Ties on the ranks before this one come first.
        rank = dist.get_rank(group)
        held = torch.zeros(dist.get_world_size(group), dtype=torch.int64, device=device)
        held[rank] = sum(int(tie.sum()) for tie in ties)
        left -= int(summed(held)[:rank].sum())
    masks = []
    for score, code, tie in zip(scores, codes, ties, strict=True):
        mask = (code > threshold) | (tie & (tie.cumsum(0) <= left))
        left -= int(tie.sum())
        masks.append(mask.view(score.shape))
    return masks


def _code(score: torch.Tensor) -> torch.Tensor:
    if score.dtype == torch.float64:
        raise InputError("keep_largest_across: float64 scores would be rounded; use float32.")
    flat = score.detach().reshape(-1).float()
    if (~(flat >= 0)).any():
        raise InputError("keep_largest_across: scores must be at least 0 and not NaN.")
    # + 0.0 makes -0.0, which >= accepts, the same as 0.0.
    return (flat + 0.0).view(torch.int32).long()
