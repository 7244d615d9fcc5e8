# SPDX-License-Identifier: Apache-2.0
"""What all encoders have in common that take the place of a stock one and run its layers."""

import copy
from typing import Any

from torch import nn


class EncoderStandIn(nn.Module):
    """Takes the place of an encoder inside its model.

    Attributes:
        layer: the layers of the encoder, under their old names.
        config: its configuration, where other code looks for it.
    """

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        # In a tuple, so that it is no submodule: its layers are this one's, and names stay.
        self._stock = (stock,)
        self.layer: Any = stock.layer
        self.config: Any = getattr(stock, "config", None)

    def to_compact(self) -> nn.Module:
        """The encoder it was made of, with the layers as they are now: what is saved."""
        encoder = copy.copy(self._stock[0])
        encoder.__dict__["_modules"] = {**encoder._modules, "layer": self.layer}
        return encoder
