# SPDX-License-Identifier: Apache-2.0
"""A pruned model made fast, layer by layer, and what can be said of it.

Start at `compile`, which puts packed layers where they measure faster. `explain` says per layer
what runs it and why, `layer_times` where the time of a forward goes. `neurons.py` runs feed-forward
blocks on their active neurons; `io_order.py` counts what a small network moves in memory.
"""

from gossamer.running.layers.compiler import compile
from gossamer.running.layers.explanation import Explanation, Row, explain
from gossamer.running.layers.layer_times import LayerTime, LayerTimes, layer_times
from gossamer.running.layers.neurons import use_active_neurons

__all__ = [
    "Explanation",
    "LayerTime",
    "LayerTimes",
    "Row",
    "compile",
    "explain",
    "layer_times",
    "use_active_neurons",
]
