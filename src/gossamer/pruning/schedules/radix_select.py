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

_BITS, _BINS = 8, 256


def keep_largest_across(
    scores: Sequence[torch.Tensor], num_kept: int, group: Any = None
) -> list[torch.Tensor]:
    """Bool masks of the `num_kept` largest scores of all processes of `group` together.

    Args:
        scores: float32 or narrower, at least 0, without NaN; those of this process.
        num_kept: of all scores everywhere.
        group: a process group; None: this process alone.
    """
    codes = [_code(score) for score in scores]
    device = codes[0].device if codes else torch.device("cpu")
    total = _summed(torch.tensor(sum(code.numel() for code in codes), device=device), group)
    if num_kept <= 0:
        return [torch.zeros_like(score, dtype=torch.bool) for score in scores]
    if num_kept >= int(total):
        return [torch.ones_like(score, dtype=torch.bool) for score in scores]
    threshold, num_ties = _threshold(codes, num_kept, device, group)
    return _cut(scores, codes, threshold, num_ties, group)


def _code(score: torch.Tensor) -> torch.Tensor:
    if score.dtype == torch.float64:
        raise InputError("keep_largest_across: float64 scores would be rounded; use float32.")
    flat = score.detach().reshape(-1).float()
    if bool((~(flat >= 0)).any()):
        raise InputError("keep_largest_across: scores must be at least 0 and not NaN.")
    # + 0.0 makes -0.0, which >= accepts, the same as 0.0.
    return (flat + 0.0).view(torch.int32).long()


def _threshold(
    codes: list[torch.Tensor], num_kept: int, device: torch.device, group: Any
) -> tuple[int, int]:
    """The code of the smallest kept score, and how many of its ties are kept."""
    prefix, left = 0, num_kept
    for shift in (24, 16, 8, 0):
        counts = torch.zeros(_BINS, dtype=torch.int64, device=device)
        for code in codes:
            here = code[(code >> (shift + _BITS)) == prefix]
            counts += torch.bincount((here >> shift) & (_BINS - 1), minlength=_BINS)
        counts = _summed(counts, group)
        from_top = counts.flip(0).cumsum(0)
        place = int((from_top < left).sum())
        left -= int(from_top[place - 1]) if place else 0
        prefix = (prefix << _BITS) | (_BINS - 1 - place)
    return prefix, left


def _cut(
    scores: Sequence[torch.Tensor],
    codes: list[torch.Tensor],
    threshold: int,
    num_ties: int,
    group: Any,
) -> list[torch.Tensor]:
    ties = [code == threshold for code in codes]
    left = num_ties - _before(sum(int(tie.sum()) for tie in ties), codes, group)
    masks = []
    for score, code, tie in zip(scores, codes, ties, strict=True):
        mask = (code > threshold) | (tie & (tie.cumsum(0) <= left))
        left -= int(tie.sum())
        masks.append(mask.view(score.shape))
    return masks


def _before(own: int, codes: list[torch.Tensor], group: Any) -> int:
    """Ties on the ranks before this one."""
    if group is None:
        return 0
    device = codes[0].device if codes else torch.device("cpu")
    held = [
        torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))
    ]
    dist.all_gather(held, torch.tensor([own], device=device), group=group)
    return sum(int(count) for count in held[: dist.get_rank(group)])


def _summed(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    if group is not None:
        dist.all_reduce(tensor, group=group)
    return tensor
