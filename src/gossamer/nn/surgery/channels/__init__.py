# SPDX-License-Identifier: Apache-2.0
"""Channels cut out of a convolutional network on both sides: it computes the same, and is smaller.

`read_channels` follows the channels of a traced network through its layers: which of them stand or
fall together, and which are 0 for every input. `cut_dead_channels` takes those out, of the layer
that makes them, of the BatchNorm behind it and of every layer that reads them; the optimizer
follows. What was cut is written on the model as data (`cut_sizes`), from which `restore_cut` makes
a network of full size slim again. Heads and filters of transformers are cut by
`nn/surgery/slimming`.
"""

from gossamer.nn.surgery.channels.cutting import ChannelCut, cut_dead_channels
from gossamer.nn.surgery.channels.reading import ChannelMap, read_channels
from gossamer.nn.surgery.channels.record import CutSizes, cut_sizes, restore_cut
from gossamer.nn.surgery.channels.resizing import LayerSizes

__all__ = [
    "ChannelCut",
    "ChannelMap",
    "CutSizes",
    "LayerSizes",
    "cut_dead_channels",
    "cut_sizes",
    "read_channels",
    "restore_cut",
]
