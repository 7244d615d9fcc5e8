# SPDX-License-Identifier: Apache-2.0
"""What packed layers of all kinds have in common."""

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, WeightIsPacked
from gossamer.formats import SparseMatrix
from gossamer.nn.layer_kinds import KINDS
from gossamer.nn.layers import SparseLayer
from gossamer.nn.layers.parts import HasNoWeight, Refusal, WeightStandIn
from gossamer.patterns import Pattern
from gossamer.running.choice import Choice


class PackedForm(HasNoWeight, SparseLayer):
    """A layer with a weight packed for kernels. Inference only.

    Packed weights are copies: later edits of the layer they came from do not reach them.

    Args:
        shape: of the weight.
        bias: or None.
        pattern: the rule the mask obeys.
        choices: what was measured.
        dtype: of the layer; 16-bit ones are computed in float32.
        where: begins the message of what needs the weight itself.
    """

    form = "packed"
    bias: nn.Parameter | None

    def __init__(
        self,
        shape: tuple[int, ...],
        bias: torch.Tensor | None,
        pattern: Pattern,
        choices: tuple[Choice, ...],
        dtype: torch.dtype,
        where: str,
    ) -> None:
        super().__init__()
        self._shape, self._dtype = shape, dtype
        self._stand_in = _stand_in(where, shape, dtype)
        self.pattern = pattern
        self.choices = tuple(sorted(choices, key=lambda choice: choice.tokens))
        held = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.register_parameter("bias", held)

    @property
    def weight(self) -> torch.Tensor:
        """Answers dtype, device and shape; the numbers are packed."""
        return self._stand_in

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the dense weight."""
        return self._shape

    @abstractmethod
    def packed_matrix(self) -> SparseMatrix:
        """The kept values as float32, as they were packed."""

    def trained(self) -> nn.Parameter:
        """A packed layer has no Parameter to train: InputError says what to do."""
        raise InputError(
            f"{type(self).__name__}: a packed layer is for inference. Train the model it was"
            " compiled from."
        )

    def matrix(self) -> SparseMatrix:
        """The kept values that were packed, in the dtype of the layer."""
        held = self.packed_matrix()
        positions = replace(held.positions, pattern=self.pattern)
        # A 16-bit value is the same in 32 bits.
        return SparseMatrix(positions, held.values.to(self._dtype))

    def to_compact(self) -> Any:
        """The compact layer with the same kept values: what `gossamer.save` writes."""
        held, kind = self.matrix(), KINDS[self.kind]
        values, bits = held.values.clone(), held.positions.bits().clone()
        return kind.compact(values, bits, kind.settings(self), self.bias, pattern=self.pattern)


def _stand_in(where: str, shape: tuple[int, ...], dtype: torch.dtype) -> WeightStandIn:
    """What `.weight` of a packed layer gives."""
    message = (
        f"{where}: its weight is packed for a sparse kernel, and the model computes with .weight"
        " itself. Compile the original with example=, an input of the model: the run of it finds"
        " such layers, and they stay dense. to_compact().to_dense().weight is a copy of the weight."
    )
    return WeightStandIn(shape, dtype, torch.device("cpu"), Refusal(WeightIsPacked, message))
