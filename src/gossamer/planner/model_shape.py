# SPDX-License-Identifier: Apache-2.0
"""A model as a chain of units with their costs: all a plan knows of it, free of torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from gossamer.errors import InputError
from gossamer.planner.table_step import TableShape

__all__ = ["NAMED_SHAPES", "GPTSizes", "ModelShape", "Unit", "gpt_shape"]

# Of materialised attention with dropout, bytes of 16-bit training per token and feature
# (arXiv 2205.05198): 11 and 5 per score in attention, 19 in the feed-forward, 2 for each norm.
_ATTENTION_SAVED, _SCORE_SAVED, _FFN_SAVED = 13 / 2, 5 / 2, 21 / 2
# Logits in 16 and 32 bits, their softmax and gradient: 10 bytes each.
_LOGITS_SAVED = 10 / 2


@dataclass(frozen=True)
class Unit:
    """A part of a model that is never cut.

    Attributes:
        name: for people.
        prunable: entries of weights that a mask may cover.
        rest: other parameters: biases, norms, embeddings, heads.
        flops_prunable: forward operations per token in products with prunable weights.
        flops_rest: other forward operations per token.
        saved: numbers per token that the backward pass needs.
        output: numbers per token that go to the next unit.
        largest: entries of the largest prunable weight: scratch of a dense copy.
        is_block: blocks are recomputed, what comes before and after them is not.
        tied: parameters it shares with the first unit, which another stage holds once more.
        of_experts: of `prunable`, entries of experts that ranks can share.
        routed: numbers per token that go to experts.
    """

    name: str
    prunable: int
    rest: int
    flops_prunable: float
    flops_rest: float
    saved: float
    output: float
    largest: int
    is_block: bool = True
    tied: int = 0
    of_experts: int = 0
    routed: float = 0.0


@dataclass(frozen=True)
class ModelShape:
    """What a plan knows of a model.

    Attributes:
        name: for people.
        units: in the order of the forward pass; a pipeline is cut between them.
        tokens: of one sample.
        blocks: layers, of two units each in `gpt_shape`: recomputation counts in them.
        tables: those whose gradients are touched rows; their parameters are in `units`, too.
        experts: of a mixture; 0: there are none.
    """

    name: str
    units: tuple[Unit, ...]
    tokens: int
    blocks: int
    tables: tuple[TableShape, ...] = ()
    experts: int = 0

    @property
    def prunable(self) -> int:
        """Entries that a mask may cover."""
        return sum(unit.prunable for unit in self.units)

    @property
    def parameters(self) -> int:
        """All of them."""
        return sum(unit.prunable + unit.rest for unit in self.units)

    @property
    def flops_per_token(self) -> float:
        """Of a forward pass."""
        return sum(unit.flops_prunable + unit.flops_rest for unit in self.units)

    def all_pruned(self) -> "ModelShape":
        """As if masks covered every parameter, which is how published formulas count."""
        units = tuple(
            replace(unit, prunable=unit.prunable + unit.rest, rest=0) for unit in self.units
        )
        return replace(self, units=units)


@dataclass(frozen=True)
class GPTSizes:
    """A decoder in numbers."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 50257
    tokens: int = 2048
    ffn_width: int = 0
    tied: bool = True

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "vocabulary", "tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: must be at least 1, got {getattr(self, name)}.")


# Layers and widths of GPT-3's family; heads of 80 or 128 features.
NAMED_SHAPES: Final[Mapping[str, GPTSizes]] = {
    "gpt3-xl": GPTSizes(24, 2048, 16),
    "gpt3-2.7b": GPTSizes(32, 2560, 32),
    "gpt3-6.7b": GPTSizes(32, 4096, 32),
    "gpt3-13b": GPTSizes(40, 5120, 40),
}


def gpt_shape(sizes: GPTSizes, name: str = "gpt") -> ModelShape:
    """A decoder by formulas: 12 N h^2 + 13 N h + (V + s) h parameters and attention over s tokens.

    Activations are those of materialised attention in 16 bits. A layer is two units, attention and
    feed-forward, so that stages may be cut in its middle.
    """
    h, s, V = sizes.width, sizes.tokens, sizes.vocabulary
    ffn = sizes.ffn_width or 4 * h
    attention = Unit(
        "attention", 4 * h * h, 6 * h, 8.0 * h * h, 4.0 * s * h,
        _ATTENTION_SAVED * h + _SCORE_SAVED * sizes.heads * s, h, 3 * h * h,
    )  # fmt: skip
    feed_forward = Unit(
        "feed-forward", 2 * h * ffn, ffn + 3 * h, 4.0 * h * ffn, 0.0,
        _FFN_SAVED * (h + ffn) / 5, h, h * ffn,
    )  # fmt: skip
    embedding = Unit("embedding", 0, (V + s) * h, 0.0, 0.0, 0.0, h, 0, is_block=False)
    head = Unit(
        "head", 0, 0 if sizes.tied else V * h, 0.0, 2.0 * h * V, _LOGITS_SAVED * V, V, 0,
        is_block=False, tied=V * h if sizes.tied else 0,
    )  # fmt: skip
    return ModelShape(
        name, (embedding, *((attention, feed_forward) * sizes.layers), head), s, sizes.layers
    )
