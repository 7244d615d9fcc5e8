# SPDX-License-Identifier: Apache-2.0
"""How one layer is pruned, by name: what it must know of the inputs, and the solver.

First scorers, which say which weights matter: the higher the score, the later a weight is pruned.
"""

import inspect
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

import torch

from gossamer.errors import InputError
from gossamer.method_table import METHODS
from gossamer.patterns import Unstructured
from gossamer.pruning.solvers import (
    LayerProblem,
    LayerSolution,
    Needed,
    NotPositiveDefinite,
    Solve,
)
from gossamer.pruning.solvers import refit as least_squares
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


Built = TypeVar("Built")


@dataclass(frozen=True)
class Method:
    """A way to prune a layer.

    Attributes:
        name: as users write it.
        statistics: what `solve` needs of the layer's inputs.
        solve: gives mask and weights.
    """

    name: str
    statistics: Needed
    solve: Solve


def wanda() -> Solve:
    """Wanda (arXiv 2306.11695): |w| times the size of its input, compared inside each row."""

    def solve(problem: LayerProblem) -> LayerSolution:
        scores_RK = wanda_scores(problem)
        if isinstance(problem.pattern, Unstructured):
            scores_RK = rank_in_rows(problem.inside(scores_RK))
        return problem.kept(scores_RK)

    return solve


def wanda_scores(problem: LayerProblem) -> torch.Tensor:
    """|w| times the size of its input."""
    if problem.gram_KK is None:
        raise ValueError(f"{problem.name}: Wanda needs the squares of the inputs")
    squares_K = problem.gram_KK if problem.gram_KK.ndim == 1 else problem.gram_KK.diagonal()
    return problem.weight_RK.abs() * squares_K.clamp(min=0).sqrt()


def rank_in_rows(scores_RK: torch.Tensor) -> torch.Tensor:
    """Ranks that make a comparison over the whole layer one inside each row.

    The best weight of every row ranks alike, then the second of every row, and so on, so that the
    highest N ranks take equally many of each row, up to one.
    """
    order_RK = scores_RK.argsort(dim=1, descending=True, stable=True)
    ranks_RK = torch.empty_like(order_RK).scatter_(
        1, order_RK, torch.arange(order_RK.shape[1]).expand_as(order_RK)
    )
    return -ranks_RK.to(torch.float32)


def scored(scorer: Scorer) -> Solve:
    """Any scorer that looks at the weight alone."""
    return lambda problem: problem.kept(scorer(LayerContext(problem.name, problem.weight_RK)))


def built(name: str, build: Callable[..., Built], settings: Mapping[str, Any]) -> Built:
    """What `build` makes of its settings; one that the method does not have is refused."""
    known = list(inspect.signature(build).parameters)
    unknown = sorted(set(settings) - set(known))
    if unknown:
        listed = ", ".join(known) or "none"
        raise InputError(f"method {name!r} has no setting {unknown[0]!r}; it has: {listed}.")
    return build(**settings)


def make_method(
    name: str | Scorer, settings: dict[str, Any], *, refit: bool = False, damping: float = 0.01
) -> Method:
    """The method called `name`; a scorer that needs no data is one too.

    Args:
        name: of a row of `gossamer.method_table` that looks at inputs, or of a scorer.
        settings: of the method.
        refit: least squares of the kept weights after its mask.
        damping: of that re-fit.
    """
    row = METHODS.get(name) if isinstance(name, str) else None
    if row is not None and row.needs == "inputs":
        title, statistics, build = row.name, row.statistics, row.builder()
    else:
        scorer = resolve_scorer(name)
        if scorer.needs != "none":
            raise InputError(
                f"scorer {scorer.name!r} needs {scorer.needs}, which are not collected while data"
                " flows through the model. Use gossamer.sparsify(scorer=...) without a method."
            )
        title, statistics, build = scorer.name, "none", lambda: scored(scorer)
    chosen: Solve = built(title, build, settings)

    def solve(problem: LayerProblem) -> LayerSolution:
        try:
            solution = chosen(problem)
        except NotPositiveDefinite as error:
            # Without a factor of the Gram matrix Wanda prunes the layer, and the report says so.
            note = f"pruned by Wanda without new weights: {error}"
            solution = replace(wanda()(problem), notes=(note,))
        if not refit:
            return solution
        fitted = least_squares(problem, solution.mask_RK, damping, solution.weight_RK)
        return replace(fitted, notes=(*solution.notes, *fitted.notes))

    return Method(f"{title} + re-fit", "gram", solve) if refit else Method(title, statistics, solve)
