# SPDX-License-Identifier: Apache-2.0
"""What layers of all kinds and forms are made of.

`SparseLayer` is the base of all. Layers without a dense weight have a `WeightStandIn` for
`.weight`; the values of a resident layer may live in a `DenseHome`.
"""

from gossamer.nn.layers.parts.conv_attributes import ConvAttributes
from gossamer.nn.layers.parts.dense_home import DenseHome, MayGiveUpValues
from gossamer.nn.layers.parts.mask_rules import (
    check_float_weight,
    check_layer_mask,
    fault_in_stored_mask,
)
from gossamer.nn.layers.parts.sparse_layer import Form, GradientSum, SparseLayer
from gossamer.nn.layers.parts.weight_stand_in import HasNoWeight, Refusal, WeightStandIn

__all__ = [
    "ConvAttributes",
    "DenseHome",
    "Form",
    "GradientSum",
    "HasNoWeight",
    "MayGiveUpValues",
    "Refusal",
    "SparseLayer",
    "WeightStandIn",
    "check_float_weight",
    "check_layer_mask",
    "fault_in_stored_mask",
]
