# SPDX-License-Identifier: Apache-2.0
"""What sparse layers of all kinds are made of.

`SparseLayer` is the base of all: it knows its kind, its `Form` and its matrix. `GradientSum` adds
up dense gradients while a mask moves. A `DenseHome` is where the values of a resident layer may
live, for layers that `MayGiveUpValues`. The `check_...` functions and `fault_in_stored_mask` are
the rules for masks.
"""

from gossamer.nn.layers.parts.dense_home import DenseHome, MayGiveUpValues
from gossamer.nn.layers.parts.sparse_layer import (
    Form,
    GradientSum,
    SparseLayer,
    check_float_weight,
    check_layer_mask,
    fault_in_stored_mask,
)

__all__ = [
    "DenseHome",
    "Form",
    "GradientSum",
    "MayGiveUpValues",
    "SparseLayer",
    "check_float_weight",
    "check_layer_mask",
    "fault_in_stored_mask",
]
