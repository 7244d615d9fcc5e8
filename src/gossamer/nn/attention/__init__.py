# SPDX-License-Identifier: Apache-2.0
"""Attention layers for long sequences, trained at the cost of the pairs that attend.

`SparseAttention` stands in the place of `torch.nn.MultiheadAttention` with any pattern of
`gossamer.attention`, Longformer's global tokens with projections of their own included.
`LSHAttention` is Reformer's, `LinformerAttention` Linformer's. `replace_attention` changes the
attention of a model that exists. `attention_states` reads what the layers of a model attend to,
`restore_attention` gives it to a dense model, as files do, and `refuse_patterns` is for whoever
would compute all pairs.
"""

from gossamer.nn.attention.linformer import LinformerAttention
from gossamer.nn.attention.lsh import LSHAttention
from gossamer.nn.attention.replacing import replace_attention
from gossamer.nn.attention.sparse import SparseAttention
from gossamer.nn.attention.states import (
    AttentionState,
    attention_states,
    refuse_patterns,
    restore_attention,
)

__all__ = [
    "AttentionState",
    "LSHAttention",
    "LinformerAttention",
    "SparseAttention",
    "attention_states",
    "refuse_patterns",
    "replace_attention",
    "restore_attention",
]
