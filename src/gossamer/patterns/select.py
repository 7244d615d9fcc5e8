# SPDX-License-Identifier: Apache-2.0
"""Exact top-n selection: the count never depends on the values, the lower position wins a tie."""

import torch


def keep_largest(scores: torch.Tensor, num_kept: int) -> torch.Tensor:
    """Bool mask of the `num_kept` largest entries along the last dimension.

    `torch.topk` breaks ties as it likes; here entries above the threshold are taken first and the
    rest is filled with the leftmost entries equal to it. Scores must not hold NaN; +-inf rank.
    """
    width = scores.shape[-1]
    if num_kept <= 0 or scores.numel() == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    if num_kept >= width:
        return torch.ones_like(scores, dtype=torch.bool)
    threshold = scores.kthvalue(width - num_kept + 1, dim=-1, keepdim=True).values
    above = scores > threshold
    equal = scores == threshold
    num_missing = num_kept - above.sum(dim=-1, keepdim=True)
    return above | (equal & (equal.cumsum(dim=-1) <= num_missing))


def summable(scores: torch.Tensor) -> torch.Tensor:
    """Scores in float64, scaled by a power of two, whose sums are finite.

    Patterns that compare sums of scores would meet inf - inf otherwise. An infinite score becomes
    larger than any sum of finite ones.
    """
    wide = scores.to(torch.float64)
    largest = torch.where(wide.isfinite(), wide, 0.0).abs().amax() if wide.numel() else wide.sum()
    scaled = torch.ldexp(wide, -torch.frexp(largest).exponent)
    bound = 2.0 * (scores.numel() + 1)
    return scaled.clamp(-bound, bound)
