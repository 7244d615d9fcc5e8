# SPDX-License-Identifier: Apache-2.0
"""Experts are pruned each with the tokens that it saw: statistics, problem and solution of its own.

An expert that saw no token of the calibration data is pruned by magnitude, and one that saw few is
named: nothing is said of it that the data does not say.

Legend: T tokens of one expert, O outputs and K inputs of one expert.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gossamer.errors import InputError
from gossamer.nn.layer_weights import num_parts
from gossamer.patterns import Pattern
from gossamer.pruning.calibration.flow import Stop
from gossamer.pruning.calibration.statistics import moments
from gossamer.pruning.methods import Method
from gossamer.pruning.solvers import LayerProblem, LayerSolution, Needed
from gossamer.pruning.targets import Target

__all__ = ["ExpertProblem", "expert_problems", "prune_experts"]

# Mean squares of fewer tokens than this say little; a Gram matrix needs as many as inputs.
_FEW_TOKENS = 64
_SHOWN = 8


@dataclass(frozen=True)
class ExpertProblem:
    """The problem of one expert; its statistics are None if it saw no token."""

    expert: int
    tokens: int
    problem: LayerProblem


def expert_problems(
    target: Target, stop: Stop, needed: Needed, pattern: Pattern, count: int
) -> Iterator[ExpertProblem]:
    """The experts of a layer one at a time; what is kept is shared evenly among them."""
    experts, weight_RK = num_parts(target.module), target.weight.detach()
    weight_RK = weight_RK if weight_RK.dtype == torch.float64 else weight_RK.float()
    masks = [None] * experts if target.mask is None else target.mask.chunk(experts)
    rows = [x.split(list(counts)) for x, counts in stop.inputs]
    if not any(len(x) for x, _ in stop.inputs):
        raise InputError(f"{target.name}: no row of the calibration data reached its experts.")
    limits = [weight_RK.numel() // experts if mask is None else int(mask.sum()) for mask in masks]
    shares = _shares(count, limits)
    for expert, part in enumerate(weight_RK.chunk(experts)):
        name = f"{target.name}, expert {expert}"
        seen = [_as_float(batch[expert]) for batch in rows if len(batch[expert])]
        known = moments(seen, needed, name) if seen else None
        mask = masks[expert]
        part = part if mask is None else torch.where(mask, part, 0.0)
        problem = LayerProblem(name, part, known, pattern, shares[expert], mask)
        yield ExpertProblem(expert, sum(map(len, seen)), problem)


def prune_experts(
    method: Method, problems: Iterator[ExpertProblem], columns: int
) -> tuple[LayerSolution, float | None]:
    """The solution of a layer of experts, and the change of its outputs where it is known."""
    solutions: list[LayerSolution] = []
    notes: list[str] = []
    tokens: list[int] = []
    changes = squares = 0.0
    for part in problems:
        problem = part.problem
        tokens.append(part.tokens)
        if problem.gram_KK is None:
            solution = problem.kept(problem.weight_RK.abs())
        else:
            solution = method.solve(problem)
            if problem.gram_KK.ndim == 2:
                whole = part.tokens * problem.outputs()
                squares += whole
                changes += problem.error(solution.weight_RK) * whole
        notes += [f"expert {part.expert}: {note}" for note in solution.notes]
        solutions.append(solution)
    unseen = [expert for expert, count in enumerate(tokens) if not count]
    needed = columns if method.statistics == "gram" else _FEW_TOKENS
    few = [expert for expert, count in enumerate(tokens) if 0 < count < needed]
    if unseen:
        notes.append(f"{_named(unseen)} saw no token of the data: pruned by magnitude")
    if few:
        fewest = min(tokens[expert] for expert in few)
        notes.append(f"{_named(few)} saw fewer than {needed} tokens (fewest {fewest})")
    together = LayerSolution(
        torch.cat([solution.weight_RK for solution in solutions]),
        torch.cat([solution.mask_RK for solution in solutions]),
        tuple(notes),
    )
    return together, changes / squares if squares else None


def _shares(count: int, limits: Sequence[int]) -> list[int]:
    """`count` dealt out evenly; an expert that has fewer weights left gives the rest to others."""
    shares, open_to = [0] * len(limits), [e for e, limit in enumerate(limits) if limit]
    while count > 0 and open_to:
        each, rest = divmod(count, len(open_to))
        for place, expert in enumerate(open_to):
            taken = min(limits[expert] - shares[expert], each + (place < rest))
            shares[expert] += taken
            count -= taken
        open_to = [expert for expert in open_to if shares[expert] < limits[expert]]
    return shares


def _as_float(rows_TK: torch.Tensor) -> torch.Tensor:
    return rows_TK if rows_TK.dtype == torch.float64 else rows_TK.float()


def _named(experts: Sequence[int]) -> str:
    shown = ", ".join(map(str, experts[:_SHOWN]))
    more = f" and {len(experts) - _SHOWN} more" if len(experts) > _SHOWN else ""
    return f"expert{'s' if len(experts) > 1 else ''} {shown}{more}"
