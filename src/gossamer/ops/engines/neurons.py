# SPDX-License-Identifier: Apache-2.0
"""Feed-forward blocks whose neurons are mostly zero: only active ones are read.

See native/include/gossamer/neurons.hpp. Legend: N neurons, D features, T tokens.
"""

from typing import Final

import torch

from gossamer.errors import InputError, KernelError
from gossamer.ops import _native
from gossamer.ops.addresses import address
from gossamer.ops.kernels import active_kernels
from gossamer.ops.packed import Packed, float_array, optional_array
from gossamer.out_of_memory import names_memory

_WHERE = "neurons"
# What rows are stored in, by the number that native code gives it.
ROW_TYPES: Final = ("fp32", "bf16", "int8")


class PackedNeurons(Packed):
    """`down(relu(gate(x) - shift)^power * up(x))` for few tokens; immutable, for inference.

    A screen finds the neurons that may be active: 4 bits of the codes of every deciding row, and 4
    more of those that are near enough. What passes is computed exactly, in fp32 arithmetic. A
    neuron whose input is above the threshold by less than the rounding of its codes can be missed
    with a chance of about 1e-9; its part of the result is as small as that rounding.

    Args:
        gate_ND: the rows that decide, float32; in a plain block the first layer.
        up_ND: the rows they gate, None in a plain block.
        down_ND: columns of the second layer, neuron by neuron: its weight transposed.
        gate_bias_N: or None.
        up_bias_N: or None.
        cut: what is taken off, and the number up to which neurons are zero.
        power: 1 for ReLU, 2 for its square.
        rows: what rows are stored in, "fp32", "bf16" or "int8". With int8, codes of 8 bits with a
            scale for each row are the weights, the deciding ones too, and x is read in 16 bits.
    """

    lives = "packed neurons live"

    @names_memory("packing neurons", "Free memory.")
    def __init__(
        self,
        gate_ND: torch.Tensor,
        up_ND: torch.Tensor | None,
        down_ND: torch.Tensor,
        *,
        gate_bias_N: torch.Tensor | None = None,
        up_bias_N: torch.Tensor | None = None,
        cut: tuple[float, float] = (0.0, 0.0),
        power: int = 1,
        rows: str = "fp32",
    ) -> None:
        for name, weight in {"gate": gate_ND, "up": up_ND, "down": down_ND}.items():
            if weight is None:
                continue
            if weight.dtype is not torch.float32 or not weight.is_cpu or weight.ndim != 2:
                raise KernelError(
                    f"neurons: {name} must be a float32 matrix on the CPU, got {weight.dtype}"
                    f" {list(weight.shape)} on {weight.device}."
                )
            if weight.shape != gate_ND.shape:
                raise KernelError(
                    f"neurons: {name} must be {list(gate_ND.shape)} like gate, got"
                    f" {list(weight.shape)}. Rows are neurons: transpose the second layer."
                )
            if not bool(weight.isfinite().all()):
                raise KernelError(f"neurons: {name} holds NaN or infinity; it has no int8 codes.")
        if rows not in ROW_TYPES:
            raise InputError(f"neurons: rows must be one of {', '.join(ROW_TYPES)}; got {rows!r}.")
        self.num_neurons, self.num_features = gate_ND.shape
        self._native = _native.NeuronBlock(
            gate=float_array(gate_ND),
            up=optional_array(up_ND),
            down=float_array(down_ND),
            gate_bias=optional_array(gate_bias_N),
            up_bias=optional_array(up_bias_N),
            shift=cut[0],
            threshold=cut[1],
            power=power,
            rows=ROW_TYPES.index(rows),
            kernels=active_kernels(),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the packed block in memory."""
        return self._native.nbytes

    @names_memory(_WHERE)
    def __call__(
        self,
        x: torch.Tensor,
        known: torch.Tensor | None = None,
        seen_N: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, int]:
        """The block's output for x [..., D], without the bias of `down`; active neurons seen.

        `known`, ascending numbers of neurons, says that all others are zero, as a predictor or the
        tokens before may know: nothing else is read then, not even the codes. Entries of active
        neurons in `seen_N`, uint8 [N], become 1.
        """
        if x.dtype is not torch.float32 or x.shape[-1:] != (self.num_features,):
            raise InputError(
                f"neurons: x must be float32 [..., {self.num_features}] on the CPU, got {x.dtype}"
                f" {list(x.shape)} on {x.device}."
            )
        address(x, _WHERE)
        rows_TD = x.detach().reshape(-1, self.num_features).contiguous()
        y_TD = torch.empty_like(rows_TD)
        active = 0
        marks = None if seen_N is None else seen_N.numpy()
        numbers = None if known is None else _numbers(known, self.num_neurons)
        for row, out in zip(rows_TD, y_TD, strict=True):
            here, there = address(row, _WHERE), address(out, _WHERE)
            if numbers is None:
                active += self._native.run(here, there, marks)
            else:
                active += self._native.run_known(here, numbers, there)
        return y_TD.view(x.shape), active


def _numbers(known: torch.Tensor, num_neurons: int) -> "_native.IntArray":
    wrong = known.ndim != 1 or known.is_floating_point() or known.dtype is torch.bool
    if wrong or (len(known) and not 0 <= int(known.min()) <= int(known.max()) < num_neurons):
        raise InputError(
            f"neurons: known must be whole numbers in [0, {num_neurons}), ascending; got"
            f" {known.dtype} {list(known.shape)}."
        )
    if bool((known.diff() <= 0).any()):
        raise InputError("neurons: known must ascend without repetition; sort it first.")
    return known.to(torch.int32).contiguous().numpy()
