# SPDX-License-Identifier: Apache-2.0
"""int4 with a scale and an offset for every span of a row: weight = code x scale + offset.

Codes are 0 to 15, scales and offsets float16, as in the Q4_1 blocks of gguf files, which are such a
grid with spans of 32. The product is exact in float32 and the sum is rounded once, so every way to
compute it gives the same bits. Zero is on the grid by chance only: for weights without a mask.

Legend: R rows, K columns, G spans of a row, S columns of a span.
"""

import torch
import torch.nn.functional as F

from gossamer.errors import InputError

DTYPE = torch.float16
TOP = 15
# Parts of the smallest and largest weight that are tried: clipping a few may serve the others.
_REACHES = (1.0, 0.93, 0.86)


def encode(weight_RK: torch.Tensor, span: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [R, K], scales and offsets [R, G] of weights that are on the grid."""
    num_rows, num_columns = weight_RK.shape
    # The last column stands for those that are missing in the last span.
    missing = -num_columns % span
    padded = F.pad(weight_RK[None], (0, missing), mode="replicate")[0] if missing else weight_RK
    spans_GS = padded.reshape(-1, span)
    scales, offsets = find_levels(spans_GS)
    codes = codes_of(spans_GS, scales, offsets).to(torch.int8)
    codes_RK = codes.view(num_rows, -1)[:, :num_columns].contiguous()
    return codes_RK, scales.view(num_rows, -1), offsets.view(num_rows, -1)


def rounded(weight_RK: torch.Tensor, span: int) -> torch.Tensor:
    """The nearest weights on the best levels of every span.

    Raises:
        InputError: weights beyond float16.
    """
    whole = weight_RK.shape[1] // span * span
    # A last span that is shorter is on its own: what fills it up must not count.
    parts = [weight_RK[:, :whole].reshape(-1, span), weight_RK[:, whole:]]
    done = [nearest(part, *best_levels(part)) if part.numel() else part for part in parts]
    return torch.cat([done[0].reshape(len(weight_RK), whole), done[1]], dim=1)


def best_levels(weight_GS: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(scales, offsets) float16 [G] with the least squared error of those tried.

    Raises:
        InputError: weights beyond float16.
    """
    lowest_G, highest_G = weight_GS.amin(dim=1), weight_GS.amax(dim=1)
    if bool((torch.maximum(lowest_G.abs(), highest_G.abs()) > torch.finfo(DTYPE).max / 2).any()):
        raise InputError("rounding: weights are too large for the float16 offsets of int4.")
    best = torch.zeros(2, len(weight_GS), dtype=DTYPE)
    least_G = torch.full_like(lowest_G, torch.inf)
    for low in _REACHES:
        for high in _REACHES:
            offset_G = (lowest_G * low).to(DTYPE)
            scale_G = ((highest_G * high - lowest_G * low) / TOP).clamp(min=0).to(DTYPE)
            error_G = (nearest(weight_GS, scale_G, offset_G) - weight_GS).square().sum(dim=1)
            better_G = error_G < least_G
            if (low, high) != (1.0, 1.0):
                # Of a span with one weight only, nothing but its offset could be found again.
                better_G &= highest_G > lowest_G
            best = torch.where(better_G, torch.stack([scale_G, offset_G]), best)
            least_G = torch.where(better_G, error_G, least_G)
    return best[0], best[1]


def codes_of(
    weight_GS: torch.Tensor, scale_G: torch.Tensor, offset_G: torch.Tensor
) -> torch.Tensor:
    """The nearest codes, as floats."""
    scale, offset = scale_G.float()[:, None], offset_G.float()[:, None]
    codes = torch.where(scale > 0, (weight_GS - offset) / scale, 0.0).round()
    return codes.nan_to_num(0.0).clamp(0, TOP)


def nearest(weight_GS: torch.Tensor, scale_G: torch.Tensor, offset_G: torch.Tensor) -> torch.Tensor:
    """The nearest weights on these levels."""
    codes = codes_of(weight_GS, scale_G, offset_G)
    return codes * scale_G.float()[:, None] + offset_G.float()[:, None]


def find_levels(weight_GS: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(scales, offsets) that hold weights of a grid to the bit; of others, some that do not.

    Any codes may be the smallest and the largest that are used, 0 and 15 most likely.
    """
    lowest_G, reach_G = weight_GS.amin(dim=1), weight_GS.amax(dim=1) - weight_GS.amin(dim=1)
    scales_G = (reach_G / TOP).to(DTYPE)
    offsets_G = lowest_G.to(DTYPE)
    wrong = (nearest(weight_GS, scales_G, offsets_G) != weight_GS).any(dim=1).nonzero()[:, 0]
    for used in range(TOP, 0, -1):
        for base in range(TOP - used + 1):
            if not len(wrong):
                return scales_G, offsets_G
            scale = (reach_G[wrong] / used).to(DTYPE)
            offset = (lowest_G[wrong] - base * scale.float()).to(DTYPE)
            fits = (nearest(weight_GS[wrong], scale, offset) == weight_GS[wrong]).all(dim=1)
            scales_G[wrong[fits]], offsets_G[wrong[fits]] = scale[fits], offset[fits]
            wrong = wrong[~fits]
    return scales_G, offsets_G
