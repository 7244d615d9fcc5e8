# SPDX-License-Identifier: Apache-2.0
"""Sparse intermediate tensors: what a model computes between its weights, and gradients of it.

`sparsify_outputs(model, rules, example)` gives the outputs of operators and modules a sparsifier,
chosen by patterns of their names; `SparseOutput` says which, where it is applied and how the result
is held. `sites` lists the names that a model has. Nothing is traced: the model is run once.
`carry_rules` is for those who put one module in the place of another.
"""

from gossamer.nn.intermediate.attaching import Attached, carry_rules, sparsify_outputs
from gossamer.nn.intermediate.output import SparseOutput
from gossamer.nn.intermediate.sites import Site, sites

__all__ = ["Attached", "Site", "SparseOutput", "carry_rules", "sites", "sparsify_outputs"]
