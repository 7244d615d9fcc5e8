# SPDX-License-Identifier: Apache-2.0
"""What layers without a dense weight answer when a model looks at `.weight` and its like.

`HasNoWeight` gives a layer a `WeightStandIn`, which knows dtype, device and shape; computing with
it is an error with advice, a `Refusal`. `ConvAttributes` are what models read of a convolution.
"""

from gossamer.nn.layers.stand_in.weight_stand_in import (
    ConvAttributes,
    HasNoWeight,
    Refusal,
    WeightStandIn,
)

__all__ = ["ConvAttributes", "HasNoWeight", "Refusal", "WeightStandIn"]
