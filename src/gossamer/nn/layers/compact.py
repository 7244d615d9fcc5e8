# SPDX-License-Identifier: Apache-2.0
"""What compact layers share: kept values are the Parameter, positions a packed buffer.

Gradients, optimizer moments, all-reduce buckets and checkpoints are then ordinary small vectors,
and stock optimizers, DDP and clip_grad_norm_ work unmodified. With fp32 AdamW a layer costs
16 f + 1/8 bytes per weight (f = kept fraction): value, gradient, two moments, one bit of mask.

Legend: R rows (outputs), K columns (everything else: inputs, or inputs x kernel), n kept values.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import nn

from gossamer.errors import InputError, WeightIsCompact
from gossamer.formats import Positions, SparseMatrix
from gossamer.formats.bits import count_bits, pack_bits
from gossamer.formats.matrix import matrix_shape
from gossamer.nn.layers.parts import (
    MayGiveUpValues,
    SparseLayer,
    check_float_weight,
    check_layer_mask,
    fault_in_stored_mask,
)
from gossamer.nn.layers.stand_in import HasNoWeight, Refusal, WeightStandIn
from gossamer.nn.surgery import inherit_hooks
from gossamer.nn.surgery.optimizer_state import check_state, convert_state
from gossamer.ops.training import expand_into
from gossamer.ops.training.expansion import expand, gather, gather_kept
from gossamer.patterns import Pattern, Unstructured

if TYPE_CHECKING:
    from typing_extensions import Self

Mode = Literal["jit", "resident", "kernel", "samo"]


class CompactWeight(MayGiveUpValues, HasNoWeight, SparseLayer):
    """`values` (Parameter), `mask_bits` (packed, saved), `bias`, `pattern`, `mode`.

    Args:
        values: the n kept values of the weight seen as [R, K], row-major.
        mask_bits: packed mask uint8 [R, ceil(K/8)].
        shape: of the dense weight.
        bias: [R] or None.
        pattern: the rule the mask obeys.
        mode: how the layer multiplies; see the layer.
    """

    form = "compact"
    MODES: ClassVar[tuple[Mode, ...]] = ("jit", "resident", "kernel")

    values: nn.Parameter
    bias: nn.Parameter | None
    mask_bits: torch.Tensor

    def __init__(
        self,
        values: torch.Tensor,
        mask_bits: torch.Tensor,
        shape: tuple[int, ...],
        bias: torch.Tensor | None,
        pattern: Pattern | None,
        mode: Mode,
    ) -> None:
        super().__init__()
        where = f"compact {type(self).__name__}"
        self._check_mode(mode)
        self._shape = shape
        self.pattern = Unstructured() if pattern is None else pattern
        self.mode: Mode = mode
        check_float_weight(values, where)
        fault = self._fault(values, mask_bits, f"{where}: ")
        if fault is not None:
            raise InputError(fault)
        self.values = _parameter(values)
        self.register_parameter("bias", None if bias is None else _parameter(bias))
        self.register_buffer("mask_bits", mask_bits)
        # Not a buffer: DDP would broadcast the dense copy at every forward.
        self._dense: torch.Tensor | None = None
        self._dense_source: tuple[int, int] | None = None
        if mode == "samo":
            self.give_up_values()

    def _check_mode(self, mode: Mode) -> None:
        if mode not in self.MODES:
            raise InputError(
                f"compact {type(self).__name__}: mode must be one of {', '.join(self.MODES)}; got"
                f" {mode!r}."
            )

    def switch(self, mode: Mode) -> None:
        """Multiply in another mode from now on; values that were given up come back first."""
        self._check_mode(mode)
        self.take_back_values()
        self.mode = mode
        self.refresh()
        if mode == "samo":
            self.give_up_values()

    @staticmethod
    @abstractmethod
    def settings_of(layer: Any) -> Any:
        """What the class takes besides values and mask, of a layer of its kind in any form."""

    @classmethod
    def from_dense(
        cls, layer: Any, mask: torch.Tensor, pattern: Pattern | None = None, mode: Mode = "jit"
    ) -> "Self":
        """Keep the masked weights of `layer`; its bias Parameter and hooks are taken over."""
        weight, where = layer.weight, f"{type(layer).__name__}.from_dense"
        pattern = Unstructured() if pattern is None else pattern
        check_float_weight(weight, where)
        check_layer_mask(mask, matrix_shape(weight.shape), pattern, where)
        mask = mask.to(weight.device)
        values = nn.Parameter(gather(weight.detach(), mask), requires_grad=weight.requires_grad)
        settings, bits = cls.settings_of(layer), pack_bits(mask)
        compact = cls(values, bits, settings, layer.bias, pattern=pattern, mode=mode)
        inherit_hooks(compact, layer)
        return compact

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the dense weight."""
        return self._shape

    @property
    def nnz(self) -> int:
        """Kept weights."""
        return self.values.numel()

    def trained(self) -> nn.Parameter:
        """`values`."""
        return self.values

    def matrix(self) -> SparseMatrix:
        """A view of `values` and the mask; a copy of the values if they live in a dense weight."""
        shape = self.weight_shape
        bits = None if self.nnz == torch.Size(shape).numel() else self.mask_bits
        return SparseMatrix(Positions(bits, shape, self.pattern), self.kept_values())

    def mask_digest(self) -> str:
        """sha256 (hex) of shape and mask, to compare ranks and files."""
        return Positions(self.mask_bits, self.weight_shape).digest

    def dense_weight(self) -> torch.Tensor:
        """A copy of the weight in its own shape, exact zeros included; no gradients."""
        return self.spread(self.kept_values())

    def spread(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the shape of `values` in the shape of the weight, zeros elsewhere."""
        return expand(tensor, self.mask_bits, self.matrix_shape[1]).view(self.weight_shape)

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """The kept entries of a tensor of the weight's shape."""
        return gather_kept(tensor.flatten(1), self.mask_bits, self.nnz)

    @abstractmethod
    def product(self, x: torch.Tensor, values: torch.Tensor, *, sparse: bool) -> torch.Tensor:
        """What forward computes without bias, of these values; on sparse kernels or densely."""

    @abstractmethod
    def why_no_kernel(self) -> str | None:
        """Why mode "kernel" would run densely whatever the input is; None if it would not."""

    def input_shape(self, tokens: int, seen: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """The shape of an input of so many tokens; of images, what was `seen`, if anything was."""
        return seen

    def num_products(self, shape: tuple[int, ...]) -> int:
        """How often an input of this shape is multiplied by a row: tokens, or output pixels."""
        return torch.Size(shape[:-1]).numel()

    def refresh(self) -> None:
        """Forget the dense copy of mode "resident"; the next forward rebuilds it."""
        self._dense_source = None

    def train(self, mode: bool = True) -> "Self":
        """Set the mode; a dense copy is rebuilt afterwards."""
        self.refresh()
        return super().train(mode)

    def _fresh_dense(self) -> torch.Tensor:
        if self._home is not None:
            return self._home.dense
        values, dense = self.values, self._dense
        # Inference tensors count no versions, so their copy is rebuilt each time.
        source = None if values.is_inference() else (values._version, values.data_ptr())
        if dense is not None and (dense.dtype, dense.device) != (values.dtype, values.device):
            dense = None
        if dense is None:
            with torch.inference_mode(False):
                dense = values.new_empty(self.matrix_shape, requires_grad=False)
            self._dense, self._dense_source = dense, None
        if self.training or source is None or source != self._dense_source:
            # Through .data: a second forward writes the same numbers again, and the backward of the
            # first must not take that for a change of its saved weight.
            expand_into(dense.data, values.detach(), self.mask_bits)
            self._dense_source = source
        return dense

    @torch.no_grad()
    def remap(self, new_mask: torch.Tensor, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Move to another mask, in place; nnz may change.

        Survivors keep value and optimizer state bit by bit; grown weights start at 0 with zero
        state; the gradient is dropped. `values` stays the same Parameter object. Wrap in DDP
        afterwards: its buckets are cut for one nnz.
        """
        where = f"{type(self).__name__}.remap"
        check_layer_mask(new_mask, self.matrix_shape, self.pattern, where)
        new_bits = pack_bits(new_mask.to(self.mask_bits.device))
        old_bits, values, num_values = self.mask_bits.clone(), self.values, count_bits(new_bits)

        def moved(vector: torch.Tensor) -> torch.Tensor:
            return gather_kept(expand(vector, old_bits, self.matrix_shape[1]), new_bits, num_values)

        with self._with_values():
            if optimizer is not None:
                check_state(optimizer, values, where)
                state = convert_state(optimizer, values, moved)
                if values in optimizer.state:
                    optimizer.state[values] = state
            values.grad = None
            values.data = moved(values.data)
            self.mask_bits.copy_(new_bits)
            self.refresh()

    def take(self, matrix: SparseMatrix, mode: Mode) -> None:
        """Hold another sparse weight of the same shape; the Parameter object stays."""
        self._check_mode(mode)
        self.take_back_values()
        self.values.grad = None
        self.values.data = matrix.values.to(self.values.device)
        self.mask_bits.copy_(matrix.positions.bits())
        self.pattern = matrix.pattern
        self.switch(mode)

    def __getattr__(self, name: str) -> Any:
        # Not a property: state_dict, parameters and hooks on Parameters know nothing of it.
        home = self.__dict__.get("_home") if name == "mask_bits" else None
        if home is not None:
            # In mode "samo" the index stands for it.
            return home.mask_bits()
        if name == "weight" and "values" in self.__dict__.get("_parameters", ()):
            values = self.values
            advice = (
                f"this compact {type(self).__name__} has no .weight: its kept weights are the"
                " vector .values, at the positions of .mask(). Read to_dense().weight for a copy,"
                " change .values in place, or move the mask with remap(new_mask, optimizer)."
            )
            give = Refusal(WeightIsCompact, advice)
            return WeightStandIn(
                self.weight_shape, values.dtype, values.device, give, values.requires_grad
            )
        return super().__getattr__(name)

    def _fault(self, values: torch.Tensor, bits: torch.Tensor, prefix: str) -> str | None:
        """Why values and packed mask do not belong together; None if they do."""
        fault = fault_in_stored_mask(bits, self.matrix_shape, self.pattern, f"{prefix}mask_bits")
        if fault is not None:
            return fault
        num_set = count_bits(bits)
        if values.ndim != 1 or values.numel() != num_set:
            return (
                f"{prefix}values: the mask keeps {num_set} weights of {list(self.matrix_shape)},"
                f" but values has shape {list(values.shape)}. Take both from the same checkpoint."
            )
        return None

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        error_msgs: list[str] = args[-1] if args else kwargs["error_msgs"]
        values = state_dict.get(prefix + "values")
        bits = state_dict.get(prefix + "mask_bits", self.mask_bits)
        with self._with_values():
            if values is not None:
                fault = self._fault(values, bits, prefix)
            elif torch.equal(bits.to(self.mask_bits.device), self.mask_bits):
                fault = None
            else:
                fault = f"{prefix}mask_bits: another mask than the layer's came without its values."
            if fault is not None:
                error_msgs.append(fault)
                return
            if values is not None and values.shape != self.values.shape:
                # A checkpoint may hold another mask; the Parameter object stays.
                self.values.grad = None
                self.values.data = self.values.data.new_empty(values.shape)
            super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
            self.refresh()

    def _settings_repr(self) -> str:
        return (
            f"bias={self.bias is not None}, nnz={self.nnz}, density={self.density:.4g},"
            f" pattern={self.pattern}, mode={self.mode}"
        )


def _parameter(tensor: torch.Tensor) -> nn.Parameter:
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor.detach())
