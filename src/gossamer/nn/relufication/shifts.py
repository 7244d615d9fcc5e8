# SPDX-License-Identifier: Apache-2.0
"""Shifts are read off data, and become part of biases where there are any."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.relufication.activations import ShiftedReLU
from gossamer.nn.relufication.blocks import feed_forward_blocks
from gossamer.nn.relufication.histogram import Histogram

Call = Callable[[nn.Module, Any], object]


def choose_shifts(
    model: nn.Module, batches: Iterable[Any], call: Call, *, zeros: float
) -> dict[str, float]:
    """Per block, the shift with which the fraction `zeros` of its activations would be zero.

    Never below 0: a block that has more zeros with a plain ReLU keeps them.

    Args:
        model: run in eval mode, without gradients.
        batches: calibration data; gone through twice, for the range and for the counts.
        call: `call(model, batch)` runs the model.
        zeros: fraction between 0 and 1.
    """
    if not 0 <= zeros < 1:
        raise InputError(f"choose_shifts: zeros must be at least 0 and below 1, got {zeros}.")
    blocks, batches = feed_forward_blocks(model), list(batches)
    if not batches:
        raise InputError("choose_shifts: batches is empty.")
    histograms = {block.name: Histogram() for block in blocks}
    was_training = model.training
    model.eval()
    try:
        for take in (Histogram.widen, Histogram.count):
            handles = [
                block.activation.register_forward_pre_hook(
                    lambda module, args, histogram=histograms[block.name], take=take: take(
                        histogram, args[0].detach()
                    )
                )
                for block in blocks
            ]
            try:
                for batch in batches:
                    with torch.no_grad():
                        call(model, batch)
            finally:
                for handle in handles:
                    handle.remove()
    finally:
        model.train(was_training)
    return {name: max(0.0, histogram.quantile(zeros)) for name, histogram in histograms.items()}


def fold_shifts(model: nn.Module) -> list[str]:
    """Move shifts into the biases before them, where there are any; the names of those blocks.

    relu(w x + c - b) is a plain ReLU behind the bias c - b, which every runtime and file format
    knows. Blocks without a bias keep their `ShiftedReLU`.
    """
    folded = []
    for block in feed_forward_blocks(model):
        bias = getattr(block.first, "bias", None)
        shifted = isinstance(block.activation, ShiftedReLU) and not block.activation.keeps
        if shifted and isinstance(bias, torch.Tensor):
            with torch.no_grad():
                bias -= block.activation.get_buffer("shift").to(bias.dtype)
            block.put(nn.ReLU())
            folded.append(block.name)
    return folded
