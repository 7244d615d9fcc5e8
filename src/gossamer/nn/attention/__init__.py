# SPDX-License-Identifier: Apache-2.0
"""Attention layers for long sequences, trained at the cost of the pairs that attend.

`SparseAttention` stands in the place of `torch.nn.MultiheadAttention` with any pattern of
`gossamer.attention`, Longformer's global tokens with projections of their own included.
`LSHAttention` is Reformer's, `LinformerAttention` Linformer's. `replace_attention` changes the
attention of a model that exists.
"""

from gossamer.nn.attention.linformer import LinformerAttention
from gossamer.nn.attention.lsh import LSHAttention
from gossamer.nn.attention.replacing import replace_attention
from gossamer.nn.attention.sparse import SparseAttention

__all__ = ["LSHAttention", "LinformerAttention", "SparseAttention", "replace_attention"]
