# SPDX-License-Identifier: Apache-2.0
"""Masked layers in compact form for the time of a training run, then masked again.

Gradients, moments and kept states are vectors of kept values; dense weights do not exist meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.surgery import replace_module
from gossamer.nn.surgery.compaction import compact
from gossamer.training.modes import ModeChoice, choose_modes


@contextmanager
def compact_form(model: nn.Module, tokens: int) -> Iterator[list[ModeChoice]]:
    """Compact layers inside, each in the mode that is faster for `tokens` rows of a Linear's input.

    Afterwards the same masked layers, with the same Parameters, hold what the compact ones learned.
    Layers that were compact before stay compact, in the chosen mode.
    """
    masked = {name: layer for name, layer in sparse_layers(model, "masked") if layer.is_called}
    left = compact(model).left_masked if masked else {}
    now = dict(sparse_layers(model, "compact"))
    pairs = [(layer, now[name]) for name, layer in masked.items() if name not in left]
    for layer, _ in pairs:
        weight = layer.weight_parameter()
        weight.data = weight.data.new_empty(0)
    try:
        yield choose_modes(model, tokens)
    finally:
        # Tied layers share one weight, which is written once or twice alike.
        for layer, compacted in pairs:
            weight = layer.weight_parameter()
            weight.data = compacted.dense_weight().detach()
            weight.grad = None
            replace_module(model, compacted, layer)
