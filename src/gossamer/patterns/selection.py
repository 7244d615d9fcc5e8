# SPDX-License-Identifier: Apache-2.0
"""How many weights stay, and which: exact top-n selection.

`kept_count` is the count that a density means, and `keep_largest` keeps just as many: the count
never depends on the values, and the lower position wins a tie. `summable` makes scores safe to add
up; `check_mask` refuses what is no mask.
"""

import torch

from gossamer.errors import PatternError

__all__ = [
    "check_mask",
    "keep_largest",
    "kept_count",
    "summable",
]


def kept_count(density: float, numel: int) -> int:
    """How many of `numel` weights stay: round(density * numel), the count every budget uses."""
    return round(density * numel)


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
    return above | (equal & (equal.cumsum(dim=-1) <= num_kept - above.sum(dim=-1, keepdim=True)))


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


def check_mask(mask_RK: torch.Tensor, where: str) -> None:
    """Refuse anything but a 2-D bool tensor."""
    if mask_RK.dtype is not torch.bool or mask_RK.ndim != 2:
        raise PatternError(
            f"{where}: expected a bool mask [out, in], got {mask_RK.dtype} of shape"
            f" {list(mask_RK.shape)}."
        )
