# SPDX-License-Identifier: Apache-2.0
"""Models with mixtures of experts as chains of units, by formulas: Switch, Mixtral, DeepSeek-V3.

Loads are assumed to be even: every expert sees as many tokens as any other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gossamer.errors import InputError
from gossamer.planner.model_shape import ModelShape, Unit

# Numbers per token and feature that backward needs, as in `model_shape`.
_ATTENTION_SAVED, _SCORE_SAVED, _FFN_SAVED, _LOGITS_SAVED = 13 / 2, 5 / 2, 21 / 10, 10 / 2


@dataclass(frozen=True)
class MixtureModelSizes:
    """A transformer with mixtures of experts, in numbers.

    Attributes:
        layers: blocks, of encoder and decoder together where there are both.
        width: of the residual stream.
        heads: of attention.
        experts: of a mixture.
        top_k: experts of a token.
        expert_width: inner features of an expert.
        ffn_width: inner features of a dense feed-forward part.
        every: mixtures stand in every so-many-th block behind the first dense ones.
        first_dense: blocks before the first mixture.
        shared: experts that every token has besides.
        gated: whether feed-forward parts have a gate.
        attention: entries of one attention's projections; 0: four times width squared.
        crossed: blocks that attend twice: those of a decoder behind an encoder.
        vocabulary: tokens that are known.
        tokens: of a sample.
        tied: whether the head is the table.
    """

    layers: int
    width: int
    heads: int
    experts: int
    top_k: int
    expert_width: int
    ffn_width: int = 0
    every: int = 1
    first_dense: int = 0
    shared: int = 0
    gated: bool = True
    attention: int = 0
    crossed: int = 0
    vocabulary: int = 32000
    tokens: int = 2048
    tied: bool = False

    def __post_init__(self) -> None:
        sizes = ("layers", "width", "heads", "experts", "top_k", "expert_width", "every", "tokens")
        for name in sizes:
            if getattr(self, name) < 1:
                raise InputError(f"{name}: must be at least 1, got {getattr(self, name)}.")
        if self.top_k > self.experts:
            raise InputError(
                f"top_k: must be at most {self.experts}, the experts, got {self.top_k}."
            )

    def has_mixture(self, block: int) -> bool:
        """Whether block number `block`, from 0, has one."""
        return block >= self.first_dense and not (block - self.first_dense + 1) % self.every


# Of arXiv 2101.03961 and its checkpoint of 128 experts, 2401.04088, 2412.19437 (low-rank
# projections of keys, values and queries).
MIXTURE_SHAPES: Final[Mapping[str, MixtureModelSizes]] = {
    "switch-base": MixtureModelSizes(
        24, 768, 12, 128, 1, 2048, 2048, every=2, crossed=12, vocabulary=32128, tokens=512
    ),
    "switch-xxl": MixtureModelSizes(
        48, 4096, 64, 128, 1, 10240, 10240, every=2, crossed=24, vocabulary=32128, tokens=512
    ),
    "mixtral-8x7b": MixtureModelSizes(
        32, 4096, 32, 8, 2, 14336, attention=2 * 4096 * (4096 + 1024), tokens=4096
    ),
    "deepseek-v3": MixtureModelSizes(
        61, 7168, 128, 256, 8, 2048, 18432, first_dense=3, shared=1,
        attention=7168 * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168,
        vocabulary=129280, tokens=4096,
    ),
}  # fmt: skip


def mixture_shape(sizes: MixtureModelSizes, name: str) -> ModelShape:
    """The chain of units: attention and feed-forward part or mixture, layer after layer."""
    h, s, V = sizes.width, sizes.tokens, sizes.vocabulary
    projections, matrices = sizes.attention or 4 * h * h, 3 if sizes.gated else 2
    units = [Unit("embedding", 0, V * h, 0.0, 0.0, 0.0, h, 0, is_block=False)]
    for block in range(sizes.layers):
        times = 1 + (block >= sizes.layers - sizes.crossed)
        seen = _ATTENTION_SAVED * h + _SCORE_SAVED * sizes.heads * s
        units.append(
            Unit(
                "attention", times * projections, times * 2 * h, 2.0 * times * projections,
                4.0 * times * s * h, times * seen,
                h, projections,
            )
        )  # fmt: skip
        if not sizes.has_mixture(block):
            ffn = sizes.ffn_width or 4 * h
            weights = matrices * h * ffn
            saved = _FFN_SAVED * (h + ffn)
            units.append(Unit("feed-forward", weights, h, 2.0 * weights, 0.0, saved, h, h * ffn))
            continue
        one = matrices * h * sizes.expert_width
        active = (sizes.top_k + sizes.shared) * one
        # Tokens are copied for each of their experts, and so are the answers.
        saved = _FFN_SAVED * (h + (sizes.top_k + sizes.shared) * sizes.expert_width)
        units.append(
            Unit(
                "mixture", (sizes.experts + sizes.shared) * one, sizes.experts * h + h,
                2.0 * active, 2.0 * sizes.experts * h, saved + 2 * sizes.top_k * h, h, one,
                of_experts=sizes.experts * one, routed=float(sizes.top_k * h),
            )
        )  # fmt: skip
    table = V * h
    units.append(
        Unit(
            "head", 0, 0 if sizes.tied else table, 0.0, 2.0 * table, _LOGITS_SAVED * V, V, 0,
            is_block=False, tied=table if sizes.tied else 0,
        )
    )  # fmt: skip
    return ModelShape(name, tuple(units), s, sizes.layers, experts=sizes.experts)
