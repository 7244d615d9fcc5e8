# SPDX-License-Identifier: Apache-2.0
"""Attention over the blocks of a pattern, forward and backward, at the cost of its blocks.

`attention` is `gossamer.attention`. Float32 and bfloat16 on the CPU run on native kernels; anything
else runs block by block in torch. `attention_path` says which of them a call takes, and why;
`alibi_bias` is the bias that grows with distance; `lists_of` are the blocks of a call.
"""

from gossamer.ops.attention.blocks import lists_of
from gossamer.ops.attention.ranges import alibi_bias
from gossamer.ops.attention.verb import attention, attention_path

__all__ = ["alibi_bias", "attention", "attention_path", "lists_of"]
