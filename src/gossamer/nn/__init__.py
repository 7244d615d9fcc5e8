# SPDX-License-Identifier: Apache-2.0
"""Modules that hold sparse weights: masked while the mask moves, compact once it is fixed; tables.

`MaskedLinear` is a dense layer with a mask; `Linear`, `Conv2d` and `Experts`, the linear layers of
a mixture, have their kept values for a Parameter. `Embedding` and `EmbeddingBag` are tables that
are trained in few bits; `quantize_tables` makes them of all stock tables of a model.
`conv1d_to_linear` makes ordinary Linears of the layers of GPT-2, so that they can have masks.

`SparseAttention` is that of `attention`, the room of attention layers for long sequences.

Rooms behind this door: `layers`, with the bases of new ones; `moe`, mixtures of experts;
`layer_kinds`, `layer_weights` and `forms`, what can be asked of a layer and the way between its
forms; `surgery`, how modules are replaced and put back; `families`, what is known about BERT, Llama
and the others; `intermediate`, sparse activations; `operator_graph`, models that are data;
`prunable`, `rounding`, `relufication`, `tokens` and `batch`.
"""

from gossamer.nn.attention import SparseAttention as SparseAttention
from gossamer.nn.layers import Conv2d, Linear, MaskedLinear
from gossamer.nn.layers.experts import Experts
from gossamer.nn.layers.tables import Embedding, EmbeddingBag
from gossamer.nn.surgery.matrix_layers import conv1d_to_linear
from gossamer.nn.surgery.tables import quantize_tables

__all__ = [
    "Conv2d",
    "Embedding",
    "EmbeddingBag",
    "Experts",
    "Linear",
    "MaskedLinear",
    "conv1d_to_linear",
    "quantize_tables",
]
