# SPDX-License-Identifier: Apache-2.0
"""Products of the edges of a graph with dense features, forward and backward.

`Edges` holds both directions of a graph, checked once; `EdgeMatrix` adds weights that stay. `spmm`
adds up what edges bring, `spmm_max` takes the largest, `attention` weighs it by a softmax over the
edges of each target. `pair_logits` are the logits of GATv2. What is float32 or bfloat16 on the CPU
runs on native kernels; anything else is computed edge by edge in torch.
"""

from gossamer.ops.spmm.edge_softmax import attention, pair_logits
from gossamer.ops.spmm.edges import EdgeMatrix, EdgeRows, Edges
from gossamer.ops.spmm.products import spmm, spmm_max

__all__ = [
    "EdgeMatrix",
    "EdgeRows",
    "Edges",
    "attention",
    "pair_logits",
    "spmm",
    "spmm_max",
]
