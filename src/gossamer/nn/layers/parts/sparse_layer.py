# SPDX-License-Identifier: Apache-2.0
"""What every layer with a sparse weight is, and asks of a mask, whatever its kind and its form."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import nn

from gossamer.errors import FormatError, InputError, PatternError
from gossamer.formats import SparseMatrix
from gossamer.formats.bits import check_bits, unpack_bits
from gossamer.formats.matrix import matrix_shape
from gossamer.patterns import Pattern
from gossamer.patterns.selection import check_mask


def check_layer_mask(
    mask_RK: torch.Tensor, weight_shape: tuple[int, int], pattern: Pattern, where: str
) -> None:
    """Raise unless the mask is bool, has the weight's [R, K] shape and obeys the pattern."""
    check_mask(mask_RK, where)
    if tuple(mask_RK.shape) != weight_shape:
        raise InputError(
            f"{where}: the weight seen as [out, everything else] is {list(weight_shape)}, but the"
            f" mask is {list(mask_RK.shape)}."
        )
    pattern.check_shape(weight_shape, where)
    pattern.validate(mask_RK, where)


def check_float_weight(weight: torch.Tensor, where: str) -> None:
    """Raise unless the weight is floating point and holds data."""
    if not weight.is_floating_point():
        raise InputError(
            f"{where}: expected floating point weights, got {weight.dtype}."
            " Dequantize the layer first, or leave it out with ignore=[...]."
        )
    if weight.is_meta:
        raise InputError(f"{where}: the weight is on the meta device; load its values first.")
    if weight.is_inference() and not torch.is_inference_mode_enabled():
        raise InputError(
            f"{where}: the weight was created under torch.inference_mode() and cannot be changed."
            " Load the model outside of it."
        )


def fault_in_stored_mask(
    bits_RB: torch.Tensor, shape: tuple[int, int], pattern: Pattern, where: str
) -> str | None:
    """What is wrong with a packed mask from a state dict; None if nothing is."""
    try:
        check_bits(bits_RB, shape, where)
        pattern.validate(unpack_bits(bits_RB, shape[1]), where)
    except (FormatError, PatternError) as error:
        return str(error)
    return None


Form = Literal["masked", "compact", "trained", "packed"]
DenseLayer = TypeVar("DenseLayer", bound=nn.Module)


class GradientSum:
    """The sum of the dense gradients of one weight over backward passes.

    Attributes:
        total: of this process, since replicas last agreed.
        agreed: mean over replicas of everything before; None if there are none, or not yet.
    """

    total: torch.Tensor | None = None
    agreed: torch.Tensor | None = None

    def add(self, gradient: torch.Tensor) -> None:
        """One backward pass more."""
        gradient = gradient.detach()
        self.total = gradient.clone() if self.total is None else self.total.add_(gradient)


class SparseLayer(nn.Module, ABC):
    """A layer whose weight keeps some of its entries.

    Attributes:
        kind: its row in the table of layer kinds (`nn/layer_kinds.py`): "linear", "conv" and so on.
        form: "masked" while the mask moves, "compact" once it is fixed, "packed" for inference.
        is_called: False for a layer whose weight its parent reads, without calling it.
        pattern: the rule the mask obeys.
    """

    kind: ClassVar[str]
    form: ClassVar[Form]
    is_called: ClassVar[bool] = True
    pattern: Pattern

    @property
    @abstractmethod
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the dense weight."""

    @abstractmethod
    def matrix(self) -> SparseMatrix:
        """The sparse weight: positions and kept values, detached; a view where the form allows."""

    @abstractmethod
    def trained(self) -> nn.Parameter:
        """The Parameter that holds the weight in training."""

    def spread(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the shape of the trained Parameter, such as a moment, in the weight's."""
        return tensor

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the trained Parameter holds of a tensor of the weight's shape."""
        return tensor

    def dense_weight(self) -> torch.Tensor:
        """A copy of the weight in its own shape, exact zeros included; no gradients."""
        return self.matrix().dense()

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """[R, K] of the weight seen as a matrix."""
        return matrix_shape(self.weight_shape)

    @property
    def nnz(self) -> int:
        """Kept weights."""
        return self.matrix().nnz

    @property
    def density(self) -> float:
        """Kept fraction; 1 for a weight without elements."""
        numel = torch.Size(self.weight_shape).numel()
        return self.nnz / numel if numel else 1.0

    def mask(self) -> torch.Tensor:
        """A copy of the mask, bool [R, K]."""
        return self.matrix().mask()

    def mask_digest(self) -> str:
        """sha256 (hex) of shape and mask, to compare ranks and files."""
        return self.matrix().positions.digest

    def _copied_to(self, make: Callable[..., DenseLayer], **settings: Any) -> DenseLayer:
        """What `make` gives, with copies of the weight and the bias, in the same mode."""
        weight, bias = self.trained(), self._parameters.get("bias")
        dense: Any = make(**settings, bias=bias is not None, device="meta", dtype=weight.dtype)
        dense.weight = nn.Parameter(self.dense_weight(), requires_grad=weight.requires_grad)
        if bias is not None:
            dense.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
        return dense.train(self.training)  # type: ignore[no-any-return]
