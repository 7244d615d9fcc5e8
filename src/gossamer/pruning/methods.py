# SPDX-License-Identifier: Apache-2.0
"""How one layer is pruned, by name: what it must know of the inputs, and the solver."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from gossamer.errors import InputError
from gossamer.method_table import METHODS
from gossamer.patterns import Unstructured
from gossamer.pruning.scorers import LayerContext, Scorer, resolve_scorer
from gossamer.pruning.solvers import (
    LayerProblem,
    LayerSolution,
    Needed,
    NotPositiveDefinite,
    Solve,
)
from gossamer.pruning.solvers import refit as least_squares

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
