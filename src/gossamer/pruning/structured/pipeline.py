# SPDX-License-Identifier: Apache-2.0
"""`prune_structured`: gradients, search, rearrangement, slimming, reconstruction in one call."""

import copy
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.pruning.structured.replay import Keep
from gossamer.pruning.structured.search import (
    Cost,
    best_units,
    cost_tables,
    pruned_objective,
    rearrange_units,
)
from gossamer.pruning.structured.tune import Method, reconstruct
from gossamer.pruning.structured.units import (
    Fisher,
    Loss,
    find_units,
    fisher_scores,
    mask_factors,
    mask_gradients,
    scaled_units,
    slim,
)

Teacher = Literal["dense", "sqrt"]
# evaluate(model): higher is better.
Evaluate = Callable[[nn.Module], float]


@dataclass(frozen=True)
class StageLog:
    """One stage.

    Attributes:
        name: gradients, search, rearrange, slim, tune or refit.
        figure: its own objective: estimated rise of the loss (search, rearrange), mean relative
            error of sub-layers on the held-out quarter (tune, refit), None for the others.
        score: what `evaluate` said after it, None if it was not asked.
        kept: False if the state before it scored better and was taken back.
        seconds: time of the stage, evaluation not counted.
    """

    name: str
    figure: float | None
    score: float | None
    kept: bool
    seconds: float


@dataclass(frozen=True)
class BlockUnits:
    """Units of one block that are left, by their numbers in the dense model."""

    name: str
    heads: tuple[int, ...]
    filters: tuple[int, ...]


@dataclass(frozen=True)
class StructuredResult:
    """The slim model and how it came about.

    Attributes:
        model: the model that was given, now smaller.
        fraction: cost of the blocks that is left, of the dense one.
        stages: in order.
        blocks: what is left of every block.
        notes: sub-layers that could not be fitted, and why.
    """

    model: nn.Module
    fraction: float
    stages: tuple[StageLog, ...]
    blocks: tuple[BlockUnits, ...]
    notes: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """Time of all stages."""
        return sum(stage.seconds for stage in self.stages)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the model."""
        return {
            "fraction": self.fraction,
            "seconds": self.seconds,
            "stages": [asdict(stage) for stage in self.stages],
            "blocks": [asdict(block) for block in self.blocks],
            "notes": list(self.notes),
        }


def prune_structured(  # noqa: PLR0913 (the stages' settings are all named)
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    *,
    budget: float = 0.5,
    tokens: float,
    cost: Cost = "macs",
    fisher: Fisher = "batch",
    rearrange: bool = True,
    tune: bool = True,
    refit: bool = True,
    multiple: int = 1,
    min_heads: int = 0,
    min_filters: int = 0,
    keep: Keep | None = None,
    evaluate: Evaluate | None = None,
    teacher: Teacher = "dense",
    rounds: int = 1,
    fit_batches: int = 16,
) -> StructuredResult:
    """Make `model` smaller in place: whole heads and filters go, no gradient step is taken.

    Args:
        model: of a family of `find_units`; changed in place.
        batches: calibration data, a few hundred to a few thousand samples.
        loss: `loss(model, batch)`, the mean loss of a batch, a scalar.
        budget: fraction of the dense cost of all blocks that may be left.
        tokens: average length of a sequence, for the cost of attention.
        cost: "macs", "parameters" or "latency" (measured here).
        fisher: one gradient per "batch" or per "sample", see `mask_gradients`.
        rearrange: choose again which units of a group go together.
        tune: fit one scale per remaining unit to the teacher's activations.
        refit: fit the weights behind the remaining units to them.
        multiple: kept filters per block are a multiple of it.
        min_heads: at least so many heads (groups of query heads) per block.
        min_filters: at least so many filters per block.
        keep: `keep(batch)`, tokens that are no padding, [batch, tokens] per call of the model.
        evaluate: `evaluate(model)`, higher is better, on calibration data set aside. Given, the
            better state before or after every optional stage is kept.
        teacher: what reconstruction comes back to: the "dense" model, or the one pruned to the
            square root of the budget.
        rounds: reach the budget in so many geometric steps, with gradients of the slim model.

        fit_batches: reconstruction uses so many batches, evenly spread; it needs a few tokens per
            input of a layer, the gradients need more.

    Raises:
        TargetError: the architecture is not supported.
        ResourceError: nothing allowed fits the budget.
    """
    if not 0 < budget <= 1:
        raise InputError(f"budget: expected a fraction above 0 and up to 1, got {budget}.")
    if rounds < 1 or fit_batches < 1:
        raise InputError(
            f"rounds and fit_batches: expected 1 or more, got {rounds} and {fit_batches}."
        )
    run = _Run(model, list(batches), loss, keep, evaluate, fisher, fit_batches)
    tables = cost_tables(run.groups, cost, tokens)
    total = sum(float(table[-1]) for table in tables)
    is_head = [group.kind == "heads" for group in run.groups]
    limits = {
        "is_head": is_head,
        "multiple": [1 if head else multiple for head in is_head],
        "minimum": [min_heads if head else min_filters for head in is_head],
    }
    dense = copy.deepcopy(model) if tune or refit else model
    for number in range(1, rounds + 1):
        fraction = budget ** (number / rounds)
        gradients = run.gradients()
        left = [table[: group.count + 1] for table, group in zip(tables, run.groups, strict=True)]
        if teacher == "sqrt" and number == 1 and (tune or refit):
            slim(dense, run.search(gradients, left, math.sqrt(budget) * total, limits))
        kept = run.search(gradients, left, fraction * total, limits)
        if rearrange:
            kept = run.rearrange(gradients, kept)
        run.cut(kept)
        if tune:
            run.reconstruct("tune", dense, "scales")
        if refit:
            run.reconstruct("refit", dense, "weights")
    spent = sum(float(table[group.count]) for table, group in zip(tables, run.groups, strict=True))
    return run.result(spent / total if total else 1.0)


@dataclass
class _Run:
    """The model on its way, and the log of its stages."""

    model: nn.Module
    batches: list[Any]
    loss: Loss
    keep: Keep | None
    evaluate: Evaluate | None
    fisher: Fisher
    fit_batches: int
    stages: list[StageLog] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    score: float | None = None

    def __post_init__(self) -> None:
        # Batches are often sorted by length: every part of them must be seen.
        self.some = self.batches[:: -(-len(self.batches) // self.fit_batches) or 1]
        self.groups = find_units(self.model)
        self.original = [list(range(group.count)) for group in self.groups]

    def gradients(self) -> list[torch.Tensor]:
        start = time.perf_counter()
        found = mask_gradients(self.model, self.groups, self.batches, self.loss, self.fisher)
        self.stages.append(StageLog("gradients", None, None, True, time.perf_counter() - start))
        return found

    def search(
        self,
        gradients: list[torch.Tensor],
        tables: list[torch.Tensor],
        budget: float,
        limits: dict[str, Any],
    ) -> list[list[int]]:
        start = time.perf_counter()
        kept = best_units(fisher_scores(gradients), tables, budget=budget, **limits)
        seconds, self.score = time.perf_counter() - start, None
        self._is_taken("search", seconds, _objective(gradients, kept), self._masked_score(kept))
        return kept

    def rearrange(self, gradients: list[torch.Tensor], kept: list[list[int]]) -> list[list[int]]:
        start = time.perf_counter()
        other = [rearrange_units(g, units) for g, units in zip(gradients, kept, strict=True)]
        seconds = time.perf_counter() - start
        figure, score = _objective(gradients, other), self._masked_score(other)
        return other if self._is_taken("rearrange", seconds, figure, score) else kept

    def cut(self, kept: list[list[int]]) -> None:
        start = time.perf_counter()
        slim(self.model, kept)
        self.original = [
            [names[unit] for unit in units]
            for names, units in zip(self.original, kept, strict=True)
        ]
        self.groups = find_units(self.model)
        self.stages.append(StageLog("slim", None, self.score, True, time.perf_counter() - start))

    def reconstruct(self, name: str, teacher: nn.Module, method: Method) -> None:
        start = time.perf_counter()
        before = [copy.deepcopy(group.consumer.state_dict()) for group in self.groups]
        fits = reconstruct(self.model, teacher, self.some, self.loss, method=method, keep=self.keep)
        seconds = time.perf_counter() - start
        self.notes += [f"{name}: {fit.name}: {fit.note}" for fit in fits if fit.note]
        error = sum(fit.error_after for fit in fits) / len(fits)
        if not self._is_taken(name, seconds, error, self._score()):
            for group, state in zip(self.groups, before, strict=True):
                group.consumer.load_state_dict(state)

    def result(self, fraction: float) -> StructuredResult:
        blocks = [
            BlockUnits(heads.block_name, tuple(kept_heads), tuple(kept_filters))
            for heads, kept_heads, kept_filters in zip(
                self.groups[::2], self.original[::2], self.original[1::2], strict=True
            )
        ]
        return StructuredResult(
            self.model, fraction, tuple(self.stages), tuple(blocks), tuple(self.notes)
        )

    def _score(self) -> float | None:
        return None if self.evaluate is None else float(self.evaluate(self.model))

    def _masked_score(self, kept: list[list[int]]) -> float | None:
        with scaled_units(self.groups, mask_factors(self.groups, kept)):
            return self._score()

    def _is_taken(self, name: str, seconds: float, figure: float, score: float | None) -> bool:
        """Log an optional stage; whether the model is better with it, as far as one knows."""
        better = score is None or self.score is None or score > self.score
        self.stages.append(StageLog(name, figure, score, better, seconds))
        if better:
            self.score = score
        return better


def _objective(gradients: list[torch.Tensor], kept: list[list[int]]) -> float:
    return sum(pruned_objective(g, units) for g, units in zip(gradients, kept, strict=True))
