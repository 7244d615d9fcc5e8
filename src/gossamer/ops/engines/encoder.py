# SPDX-License-Identifier: Apache-2.0
"""A whole stack of encoder layers in one native call (native/include/gossamer/encoder.hpp).

Legend: N tokens of all sequences, D features, H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

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
    "DistanceBias",
    "EncoderBlock",
    "Norm",
    "PackedEncoder",
    "Product",
    "Rotation",
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
class Rotation:
    """Queries and keys are turned by their position times a frequency per pair of features.

    Attributes:
        frequencies: [head_width / 2]; none where they are not turned.
        factor: of cosines and sines.
    """

    frequencies: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    factor: float = 1.0


@dataclass(frozen=True)
class DistanceBias:
    """What is added to the score of a query and a key by the distance between them.

    Attributes:
        by_distance: [H or 1, 2 reach - 1], query minus key ascending; farther ones are the
            outermost. Empty where nothing is added.
        window: the farthest key that is seen; 0: all are.
    """

    by_distance: torch.Tensor = field(default_factory=lambda: torch.empty(0, 0))
    window: int = 0

    @property
    def reach(self) -> int:
        """Distances of one sign that have a value of their own; 0 for none."""
        return (self.by_distance.shape[1] + 1) // 2


@dataclass(frozen=True)
class EncoderBlock:
    """One layer: attention, then feed-forward, each added to what it reads.

    Attributes:
        qkv: queries, keys and values of all heads, in this order.
        up: into the feed-forward part; gate and up where it is gated.
        attention_norm: of the sum, or of what attention reads where norms come first; None there
            for nothing.
        output_norm: the same of the feed-forward part.
        norm_first: whether norms come first.
        is_gated: `down` reads act(first half) * second half of what `up` gives.
    """

    qkv: Product
    out: Product
    up: Product
    down: Product
    attention_norm: Norm | None
    output_norm: Norm | None
    epsilon: float
    heads: int
    head_width: int
    scale: float
    activation: str
    norm_first: bool = False
    is_gated: bool = False
    rotation: Rotation = Rotation()
    bias: DistanceBias = DistanceBias()

    @property
    def knows_positions(self) -> bool:
        """Whether it matters how far apart two tokens are."""
        return bool(len(self.rotation.frequencies) or self.bias.reach or self.bias.window)

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
        knows_positions: whether it matters how far apart two tokens are.
        kernels: which kernel runs each layer, by its name.
        not_usable: plug-ins that could run a layer, but not inside this call.
    """

    lives = "a packed encoder lives"

    @names_memory("packing an encoder", "Free memory.")
    def __init__(self, layers: Sequence[EncoderBlock], features: int, precision: str) -> None:
        self.features = features
        self.precision = "fp32"
        self.num_layers = len(layers)
        self.knows_positions = any(layer.knows_positions for layer in layers)
        self.nbytes = 0
        self.kernels: dict[str, str] = {}
        self.not_usable: set[str] = set()
        matrices = [part.matrix for layer in layers for part in layer.products]
        numel = sum(matrix.positions.numel for matrix in matrices)
        self.density = sum(matrix.nnz for matrix in matrices) / max(numel, 1)
        self._native = _native.EncoderModel(active_kernels(), features)
        shared: dict[int, list[_native.PanelLinear]] = {}
        for layer in layers:
            # A layer that runs several times is packed once.
            if id(layer) not in shared:
                shared[id(layer)] = [self._pack(part, precision) for part in layer.products]
                self.nbytes += sum(part.nbytes for part in shared[id(layer)])
            self._add(layer, shared[id(layer)])

    def _add(self, layer: EncoderBlock, packed: list[_native.PanelLinear]) -> None:
        qkv, out, up, down = packed
        attention_gain, attention_shift = _norm_arrays(layer.attention_norm)
        output_gain, output_shift = _norm_arrays(layer.output_norm)
        self._native.add_layer(
            qkv,
            out,
            up,
            down,
            attention_gain=attention_gain,
            attention_shift=attention_shift,
            output_gain=output_gain,
            output_shift=output_shift,
            epsilon=layer.epsilon,
            heads=layer.heads,
            head_width=layer.head_width,
            scale=layer.scale,
            activation=ACTIVATIONS[layer.activation],
            norm_first=layer.norm_first,
            is_gated=layer.is_gated,
            frequencies=_array(layer.rotation.frequencies),
            rotation_factor=layer.rotation.factor,
            bias=_array(layer.bias.by_distance.flatten()),
            reach=layer.bias.reach,
            window=layer.bias.window,
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

    @names_memory("encoder", "Give fewer tokens.")
    def run_products(self, tokens: int) -> None:
        """Its products alone, for so many tokens on one thread: to measure what the rest takes."""
        if tokens < 0:
            raise InputError(f"encoder: tokens must not be negative, got {tokens}.")
        self._native.run_products(tokens)


def _norm_arrays(norm: Norm | None) -> tuple["_native.FloatArray", "_native.FloatArray"]:
    given = Norm(torch.empty(0), torch.empty(0)) if norm is None else norm
    return _array(given.weight), _array(given.bias)


def _array(values: torch.Tensor) -> "_native.FloatArray":
    if values.dtype is not torch.float32 or values.device.type != "cpu":
        raise KernelError(
            f"encoder: weights must be float32 on the CPU, got {values.dtype} on {values.device}."
        )
    return values.detach().contiguous().numpy()
