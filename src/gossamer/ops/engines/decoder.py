# SPDX-License-Identifier: Apache-2.0
"""The parts of a decoder, packed from tensors; `decoder_session.py` runs what they are put into.

Legend: V vocabulary.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gossamer.ops.engines.decoder_session import DecoderPlan, DecoderRules, DecoderShape
from gossamer.ops.engines.neurons import PackedNeurons
from gossamer.ops.linear import PackedWeight
from gossamer.ops.packed import float_array, optional_array
from gossamer.out_of_memory import names_memory

if TYPE_CHECKING:
    from gossamer.ops.engines.decoder_experts import DecoderExperts

__all__ = [
    "DecoderBlock",
    "DecoderNorm",
    "DecoderRules",
    "DecoderShape",
    "PackedLayer",
    "decoder_plan",
]


@dataclass(frozen=True)
class DecoderNorm:
    """RMSNorm, or with a bias LayerNorm; `rectified`: with a ReLU behind it."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    eps: float
    rectified: bool = False

    def native(self) -> tuple[object, object, float, bool]:
        """As the native decoder takes it."""
        return float_array(self.weight), optional_array(self.bias), self.eps, self.rectified


@dataclass(frozen=True)
class PackedLayer:
    """One weight of a decoder.

    Attributes:
        few: runs up to 16 tokens, and more where there is no `many`.
        many: runs more than 16 tokens.
        bias: float32 or None.
    """

    few: PackedWeight
    many: PackedWeight | None = None
    bias: torch.Tensor | None = None

    def native(self) -> tuple[object, object, object]:
        """As the native decoder takes it."""
        many = None if self.many is None else self.many._native
        return self.few._native, many, optional_array(self.bias)

    @property
    def nbytes(self) -> int:
        """Bytes that one token reads."""
        return self.few.nbytes

    @property
    def resident_bytes(self) -> int:
        """Bytes in memory."""
        return self.few.nbytes + (0 if self.many is None else self.many.nbytes)


@dataclass(frozen=True)
class DecoderBlock:
    """One layer: rows of `qkv` are queries, keys, values, those of `gate_up` gate and up.

    Attributes:
        gate_up: None, as `down`, in a layer of experts.
        norms: of what attention reads and gives, of what the feed-forward part reads and gives, of
            queries and of keys: of each head, or of all as one. None: there is no such norm.
        experts: the feed-forward part, or None.
        rotation: number of the angles that turn its heads; -1: they are not turned.
        window: positions that a token attends to, its own included; 0: all.
        scale: of the scores.
        cut: of ReLU: what is taken off, and the number up to which it gives 0.
        neurons: the feed-forward part of one token, if its neurons are mostly zero.
    """

    qkv: PackedLayer
    out: PackedLayer
    gate_up: PackedLayer | None
    down: PackedLayer | None
    norms: tuple[DecoderNorm | None, ...]
    rotation: int
    window: int
    scale: float
    experts: "DecoderExperts | None" = None
    cut: tuple[float, float] = (0.0, 0.0)
    neurons: PackedNeurons | None = None

    @property
    def dense_linears(self) -> tuple[PackedLayer, ...]:
        """The weights that all tokens read, without those of a mixture: four, or two."""
        parts = (self.qkv, self.out, self.gate_up, self.down)
        return tuple(part for part in parts if part is not None)

    @property
    def linears(self) -> tuple[PackedLayer, ...]:
        """All weights."""
        return self.dense_linears + (() if self.experts is None else self.experts.linears)

    @property
    def token_bytes(self) -> int:
        """Bytes that one token reads."""
        mixture = 0 if self.experts is None else self.experts.token_bytes
        return mixture + sum(linear.nbytes for linear in self.dense_linears)


@names_memory("packing a decoder", "Free memory.")
def decoder_plan(
    shape: DecoderShape,
    embedding: PackedWeight,
    blocks: list[DecoderBlock],
    final_norm: DecoderNorm,
    head: PackedLayer,
    rotations: list[tuple[torch.Tensor, torch.Tensor]],
    positions: torch.Tensor | None = None,
    rules: DecoderRules | None = None,
) -> DecoderPlan:
    """A decoder as native code takes it.

    Args:
        shape: sizes.
        embedding: [V, width], of a family whose rows can be read (few/bitmask, few_int).
        blocks: the layers.
        final_norm: [width].
        head: [V, width]; may be the embedding.
        rotations: (cosines, sines), each [positions, rotated pairs of a head]; fewer positions than
            the context where sessions have a window that is not longer.
        positions: [context, width], added to the embeddings; or None.
        rules: what holds for all layers; None: those of Llama.
    """
    settings = {
        "embedding": embedding._native,
        "head": head.native(),
        "final_norm": final_norm.native(),
        "positions": None if positions is None else float_array(positions.flatten()),
        "rotations": tuple(
            (cosines.shape[1], float_array(cosines.flatten()), float_array(sines.flatten()))
            for cosines, sines in rotations
        ),
    }
    layers = tuple(
        (
            tuple(linear.native() for linear in block.dense_linears),
            tuple(None if norm is None else norm.native() for norm in block.norms),
            block.rotation,
            block.window,
            block.scale,
            None if block.experts is None else block.experts.native(),
            (*block.cut, None if block.neurons is None else block.neurons._native),
        )
        for block in blocks
    )
    return DecoderPlan(shape, rules or DecoderRules(), settings, layers)
