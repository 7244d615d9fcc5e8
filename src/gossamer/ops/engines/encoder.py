# SPDX-License-Identifier: Apache-2.0
"""A whole stack of encoder layers in one native call (native/include/gossamer/encoder.hpp).

Legend: N tokens of all sequences, D features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gossamer.errors import InputError, KernelError
from gossamer.formats import SparseMatrix
from gossamer.ops import _native
from gossamer.ops.addresses import address
from gossamer.ops.dispatch import PRECISIONS, Problem, engine_kernel, outside_kernels
from gossamer.ops.kernels import active_kernels
from gossamer.ops.packed import ACTIVATIONS, Packed
from gossamer.out_of_memory import names_memory

__all__ = [
    "EncoderBlock",
    "Norm",
    "PackedEncoder",
    "Product",
]


@dataclass(frozen=True)
class Product:
    """`y = x W^T + b`: the weight, the bias or None, and the layers they come from."""

    matrix: SparseMatrix
    bias: torch.Tensor | None
    layers: tuple[str, ...] = ()

    @classmethod
    def stack(cls, parts: Sequence["Product"]) -> "Product":
        """Products that read the same input as one, outputs behind one another."""
        bias = None
        if any(part.bias is not None for part in parts):
            bias = torch.cat(
                [torch.zeros(p.matrix.shape[0]) if p.bias is None else p.bias for p in parts]
            )
        layers = tuple(layer for part in parts for layer in part.layers)
        return cls(SparseMatrix.stack([part.matrix for part in parts]), bias, layers)


@dataclass(frozen=True)
class Norm:
    """A LayerNorm over the features."""

    weight: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True)
class EncoderBlock:
    """One post-norm layer: attention, norm of its sum with the input, the same for feed-forward."""

    qkv: Product
    out: Product
    up: Product
    down: Product
    attention_norm: Norm
    output_norm: Norm
    epsilon: float
    heads: int
    head_width: int
    scale: float
    activation: str

    @property
    def products(self) -> tuple[Product, ...]:
        """Its linear layers, in the order of their use."""
        return (self.qkv, self.out, self.up, self.down)


class PackedEncoder(Packed):
    """Encoder layers packed for the active kernel set; immutable, safe to call from threads.

    Args:
        layers: from first to last.
        features: D.
        precision: the lowest that products may be computed in; everything else is fp32.

    Attributes:
        precision: the lowest that a product is computed in.
        kernels: which kernel runs each layer, by its name.
        not_usable: plug-ins that could run a layer, but not inside this call.
    """

    lives = "a packed encoder lives"

    @names_memory("packing an encoder", "Free memory.")
    def __init__(self, layers: Sequence[EncoderBlock], features: int, precision: str) -> None:
        self.features = features
        self.precision = "fp32"
        self.num_layers = len(layers)
        self.nbytes = 0
        self.kernels: dict[str, str] = {}
        self.not_usable: set[str] = set()
        matrices = [part.matrix for layer in layers for part in layer.products]
        numel = sum(matrix.positions.numel for matrix in matrices)
        self.density = sum(matrix.nnz for matrix in matrices) / max(numel, 1)
        self._native = _native.EncoderModel(active_kernels(), features)
        for layer in layers:
            self._add(layer, precision)

    def _add(self, layer: EncoderBlock, precision: str) -> None:
        qkv, out, up, down = packed = [self._pack(part, precision) for part in layer.products]
        self.nbytes += sum(part.nbytes for part in packed)
        self._native.add_layer(
            qkv,
            out,
            up,
            down,
            attention_gain=_array(layer.attention_norm.weight),
            attention_shift=_array(layer.attention_norm.bias),
            output_gain=_array(layer.output_norm.weight),
            output_shift=_array(layer.output_norm.bias),
            epsilon=layer.epsilon,
            heads=layer.heads,
            head_width=layer.head_width,
            scale=layer.scale,
            activation=ACTIVATIONS[layer.activation],
        )

    def _pack(self, linear: Product, precision: str) -> _native.PanelLinear:
        problem = Problem(linear.matrix, precision, engine="encoder", bias=linear.bias)
        kernel = engine_kernel("linear", problem, " + ".join(linear.layers) or "encoder")
        self.kernels.update(dict.fromkeys(linear.layers, kernel.name))
        self.not_usable.update(outside_kernels("linear", problem))
        self.precision = max(self.precision, kernel.precision, key=PRECISIONS.index)
        packed: _native.PanelLinear = kernel.native_weight(problem)
        return packed

    @names_memory("encoder", "Run fewer sequences.")
    def __call__(self, x_ND: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """The last hidden state of sequences of these lengths, one after the other."""
        if x_ND.dtype is not torch.float32 or x_ND.shape != (sum(lengths), self.features):
            raise InputError(
                f"encoder: expected float32 hidden states [{sum(lengths)}, {self.features}] on the"
                f" CPU, got {x_ND.dtype} {list(x_ND.shape)} on {x_ND.device}."
            )
        address(x_ND, "encoder")
        x_ND = x_ND.detach().contiguous()
        y_ND = torch.empty_like(x_ND)
        if len(x_ND):
            stride, here, there = self.features, address(x_ND, "encoder"), address(y_ND, "encoder")
            self._native.run(here, stride, there, stride, list(lengths))
        return y_ND


def _array(values: torch.Tensor) -> "_native.FloatArray":
    if values.dtype is not torch.float32 or values.device.type != "cpu":
        raise KernelError(
            f"encoder: weights must be float32 on the CPU, got {values.dtype} on {values.device}."
        )
    return values.detach().contiguous().numpy()
