# SPDX-License-Identifier: Apache-2.0
"""What says which weights matter: the higher the score, the later a weight is pruned."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from gossamer.errors import InputError
from gossamer.registry import Registry

Needs = Literal["none", "activations", "gradients"]
Scope = Literal["streaming", "blocking", "materialising"]


@dataclass(frozen=True)
class LayerContext:
    """What a scorer sees of one layer.

    Attributes:
        name: dotted name.
        weight_RK: detached weight seen as [out, everything else]; pruned entries are 0.
        inputs: rows [T, K] that entered the layer on calibration data; None unless asked for.
    """

    name: str
    weight_RK: torch.Tensor  # noqa: N815  (shape suffix)
    inputs: torch.Tensor | None = None


Score = Callable[[LayerContext], torch.Tensor]


@dataclass(frozen=True)
class Scorer:
    """A named scoring function.

    Attributes:
        name: as users write it.
        score: gives a floating point tensor of the weight's shape, without NaN.
        needs: what must be collected before: nothing, layer inputs, or gradients.
        scope: how much of the tensor one score depends on: the entry alone (streaming), its block
            or row (blocking), or the whole weight (materialising).
    """

    name: str
    score: Score
    needs: Needs = "none"
    scope: Scope = "materialising"

    def __post_init__(self) -> None:
        for what, value, legal in (
            ("needs", self.needs, get_args(Needs)),
            ("scope", self.scope, get_args(Scope)),
        ):
            if value not in legal:
                raise InputError(
                    f"scorer {self.name!r}: {what} must be one of {', '.join(legal)};"
                    f" got {value!r}."
                )

    def __call__(self, context: LayerContext) -> torch.Tensor:
        """The scores, checked."""
        scores = self.score(context)
        where = f"scorer {self.name!r} on {context.name}"
        if not isinstance(scores, torch.Tensor) or scores.shape != context.weight_RK.shape:
            found = getattr(scores, "shape", type(scores).__name__)
            raise InputError(
                f"{where}: expected scores of shape {list(context.weight_RK.shape)}, got {found}."
            )
        if not scores.is_floating_point():
            raise InputError(f"{where}: expected floating point scores, got {scores.dtype}.")
        num_nan = int(scores.isnan().sum())
        if num_nan:
            raise InputError(f"{where}: {num_nan} scores are NaN and cannot be ranked.")
        # 16-bit scores are widened exactly; ranking them directly is not supported everywhere.
        return scores.float() if scores.element_size() < 4 else scores


_STUB = """\
import gossamer

@gossamer.register.scorer("{name}", needs="none", scope="streaming")
def score(context):               # context.name, context.weight_RK, context.inputs
    return context.weight_RK.abs()
"""

SCORERS: Registry[Scorer] = Registry("scorer", _STUB)


def register_scorer(
    name: str, *, needs: Needs = "none", scope: Scope = "materialising"
) -> Callable[[Score], Score]:
    """Decorator that makes a function usable as `scorer=name`."""

    def register(score: Score) -> Score:
        SCORERS.add(name, Scorer(name, score, needs, scope))
        return score

    return register


@register_scorer("magnitude", scope="streaming")
def magnitude(context: LayerContext) -> torch.Tensor:
    """|w|."""
    return context.weight_RK.abs()


def random_scorer(seed: int) -> Scorer:
    """Uniform scores, the same for the same seed and layer name on every machine."""

    def score(context: LayerContext) -> torch.Tensor:
        # crc32, not hash(): Python's string hash differs from process to process.
        generator = torch.Generator().manual_seed(seed ^ zlib.crc32(context.name.encode()))
        return torch.rand(context.weight_RK.shape, generator=generator).to(context.weight_RK.device)

    return Scorer("random", score, scope="streaming")


SCORERS.add("random", random_scorer(seed=0))


def resolve_scorer(scorer: str | Scorer) -> Scorer:
    """The scorer called `scorer`, or the object itself."""
    if isinstance(scorer, Scorer):
        return scorer
    if not isinstance(scorer, str):
        raise InputError(f"scorer: expected a name or a Scorer, got {type(scorer).__name__}.")
    return SCORERS.get(scorer)
