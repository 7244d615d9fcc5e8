# SPDX-License-Identifier: Apache-2.0
"""Layers while the mask still moves: a dense Parameter, a packed mask, the product in forward.

Because the mask is applied to the weight in forward, outputs and gradients are those of a pruned
layer whatever an optimizer does to the pruned entries (momentum from before pruning, weight
decay). Those entries are don't-cares; `masked_weight()`, `to_dense()` and `state_dict()` hold
exact zeros there.

Legend: R rows (outputs), K columns (everything else: inputs, or inputs x kernel).
"""

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import linear

from gossamer.errors import InputError
from gossamer.formats import Positions, SparseMatrix
from gossamer.formats.bits import pack_bits, unpack_bits
from gossamer.nn.layers.parts import (
    GradientSum,
    SparseLayer,
    check_float_weight,
    check_layer_mask,
    fault_in_stored_mask,
)
from gossamer.ops.conv import ConvSettings
from gossamer.ops.training.expansion import gather
from gossamer.patterns import Pattern

if TYPE_CHECKING:
    from typing_extensions import Self


class MaskedWeight(SparseLayer):
    """What masked layers share: `weight` (Parameter), `mask_bits` (packed, saved), `pattern`."""

    form = "masked"
    mask_bits: torch.Tensor
    _mask: torch.Tensor
    # Set by a controller for the steps whose dense gradient it reads: pruned entries included,
    # while `.grad` stays that of the pruned layer.
    gradient_sum: GradientSum | None = None

    @classmethod
    def from_dense(cls, layer: nn.Module, mask: torch.Tensor, pattern: Pattern) -> "Self":
        """Mask a layer: its Parameters and hooks are taken over, pruned entries become 0."""
        where = f"{cls.__name__}.from_dense"
        if "forward" in layer.__dict__ or "weight" not in layer._parameters:
            raise InputError(
                f"{where}: the layer's forward was replaced or its weight is computed, so a mask"
                " would be bypassed. Restore the layer first."
            )
        masked = cls.__new__(cls)
        # Hook tables stay the same objects, so that handles users hold keep working.
        masked.__dict__.update(layer.__dict__)
        for table in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            masked.__dict__[table] = copy.copy(layer.__dict__[table])
        weight = masked.weight_parameter()
        check_float_weight(weight, where)
        check_layer_mask(mask, masked.matrix_shape, pattern, where)
        mask = mask.to(weight.device)
        masked.pattern = pattern
        masked.register_buffer("mask_bits", pack_bits(mask))
        # One byte per weight, so that forward does not unpack; rebuilt on load, never saved.
        masked.register_buffer("_mask", mask.clone(), persistent=False)
        masked._zero_pruned()
        return masked

    def weight_parameter(self) -> nn.Parameter:
        """The trainable dense weight, whose pruned entries are don't-cares."""
        weight = self._parameters.get("weight")
        if weight is None:
            raise InputError(
                f"{type(self).__name__}: its weight is gone (set to None, deleted or computed by a"
                " parametrization). Give it a Parameter, or take a copy of the model from before."
            )
        return weight

    trained = weight_parameter

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        return tuple(self.weight_parameter().shape)

    @property
    def nnz(self) -> int:
        """Kept weights."""
        return int(self._mask.sum())

    def matrix(self) -> SparseMatrix:
        """A copy of the kept weights, with their positions."""
        weight, bits = self.weight_parameter(), None if bool(self._mask.all()) else self.mask_bits
        positions = Positions(bits, self.weight_shape, self.pattern)
        return SparseMatrix(positions, gather(weight.detach(), self._mask))

    def dense_weight(self) -> torch.Tensor:
        """A copy of the weight in its own shape, exact zeros included; no gradients."""
        return self.masked_weight().detach()

    def mask(self) -> torch.Tensor:
        """A copy of the mask, bool [R, K]."""
        return self._mask.clone()

    def mask_digest(self) -> str:
        """sha256 (hex) of shape and mask."""
        return Positions(self.mask_bits, self.weight_shape).digest

    def set_mask(self, mask: torch.Tensor) -> None:
        """Move the mask. Dropped weights become 0, grown ones start at 0.

        Optimizer state is the controller's business. Layers that share this weight share the mask
        buffers and follow.
        """
        check_layer_mask(mask, self.matrix_shape, self.pattern, f"{type(self).__name__}.set_mask")
        self._zero_pruned()
        mask = mask.to(self._mask.device)
        with torch.no_grad():
            self._mask.copy_(mask)
            self.mask_bits.copy_(pack_bits(mask))
        self._zero_pruned()

    def masked_weight(self) -> torch.Tensor:
        """The weight with exact zeros where it is pruned; differentiable."""
        weight = self.weight_parameter()
        mask, reach = self._mask.view(weight.shape), self._buffers.get("_reach")
        if reach is not None:
            masked: torch.Tensor = _Reaching.apply(  # type: ignore[no-untyped-call]
                weight, mask, reach.view(weight.shape)
            )
        else:
            # where, not a product: NaN or Inf in a pruned entry must not leak, no -0.0 appears.
            masked = torch.where(mask, weight, 0.0)
        if self.gradient_sum is not None and masked.requires_grad:
            masked.register_hook(self.gradient_sum.add)  # type: ignore[no-untyped-call]
        return masked

    def set_reach(self, reach: torch.Tensor | None) -> None:
        """Let `.grad` reach the entries of this bool [R, K] besides the kept ones; None: no more.

        For schedules that train weights which do not run yet. It is not saved.
        """
        if reach is None:
            self._buffers.pop("_reach", None)
            self._non_persistent_buffers_set.discard("_reach")
        else:
            self.register_buffer("_reach", reach, persistent=False)

    def _zero_pruned(self) -> None:
        # Through .data: don't-cares change, so nothing that autograd saved is invalidated.
        weight = self.weight_parameter().data
        weight.masked_fill_(~self._mask.view(weight.shape), 0.0)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self._zero_pruned()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        error_msgs: list[str] = args[-1] if args else kwargs["error_msgs"]
        bits = state_dict.get(prefix + "mask_bits")
        if bits is not None:
            where = f"{prefix}mask_bits"
            fault = fault_in_stored_mask(bits, self.matrix_shape, self.pattern, where)
            if fault is not None:
                error_msgs.append(fault)
                return
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        loaded = unpack_bits(self.mask_bits, self.matrix_shape[1])
        if loaded.device == self._mask.device:
            with torch.no_grad():
                self._mask.copy_(loaded)
        else:
            self._mask = loaded

    def extra_repr(self) -> str:
        """The layer's own settings, its pattern and its density."""
        return f"{super().extra_repr()}, pattern={self.pattern}, density={self.density:.4g}"


class _Reaching(torch.autograd.Function):
    """The masked weight in forward; in backward the gradient at all entries of `reach`."""

    @staticmethod
    def forward(
        ctx: Any, weight: torch.Tensor, mask: torch.Tensor, reach: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(reach)
        return torch.where(mask, weight, 0.0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (reach,) = ctx.saved_tensors
        return torch.where(reach, gradients[0], 0.0), None, None


class MaskedLinear(MaskedWeight, nn.Linear):
    """`nn.Linear` with a mask; `.weight` is the Parameter of the layer it replaces."""

    kind = "linear"

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`x (W * mask)^T + b`."""
        return linear(input, self.masked_weight(), self.bias)

    def to_dense(self) -> nn.Linear:
        """An ordinary, independent nn.Linear with exact zeros."""
        return self._copied_to(
            nn.Linear, in_features=self.in_features, out_features=self.out_features
        )


class MaskedOutProj(MaskedLinear):
    """The `out_proj` of nn.MultiheadAttention, which reads `.weight` and never calls forward.

    Reading `.weight` gives the masked weight, so attention, its gradients and its inference fast
    path see exact zeros. The Parameter is `weight_parameter()`, and `named_parameters()` has it
    under its usual name; an in-place edit of `.weight` edits a temporary.
    """

    is_called = False

    def __getattr__(self, name: str) -> Any:
        if name == "weight" and "_mask" in self.__dict__["_buffers"]:
            return self.masked_weight()
        return super().__getattr__(name)


class MaskedConv2d(MaskedWeight, nn.Conv2d):
    """`nn.Conv2d` with a mask over [out, in / groups * kernel height * kernel width]."""

    kind = "conv"

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The convolution with `W * mask`."""
        y: torch.Tensor = self._conv_forward(input, self.masked_weight(), self.bias)
        return y

    def to_dense(self) -> nn.Conv2d:
        """An ordinary, independent nn.Conv2d with exact zeros."""
        return self._copied_to(nn.Conv2d, **vars(ConvSettings.of(self)))
