# SPDX-License-Identifier: Apache-2.0
"""Products of tokens that are sorted by expert with the weights of their experts.

`grouped_linear` multiplies dense weights, forward and backward. `Routes` says which expert sees
which token: it sorts tokens by expert and puts the results back in their order. Sparse weights of
experts run on the kernels of `ops.linear` and `ops.training`, one expert after the other.
"""

from gossamer.ops.experts.grouped import grouped_linear, own_rows
from gossamer.ops.experts.routes import Routes

__all__ = ["Routes", "grouped_linear", "own_rows"]
