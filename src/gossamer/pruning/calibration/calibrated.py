# SPDX-License-Identifier: Apache-2.0
"""Pruning while calibration data flows through the model: statistics, solution, next layer.

`LiveBytes` tells how many bytes of activations are alive meanwhile.
"""

import copy
import ctypes
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.nn.layer_weights import num_parts
from gossamer.nn.surgery import unchanged_on_error
from gossamer.patterns import Pattern
from gossamer.pruning.calibration.experts import expert_problems, prune_experts
from gossamer.pruning.calibration.flow import Stop, evaluating, stops
from gossamer.pruning.calibration.statistics import Statistics
from gossamer.pruning.legal_counts import check_inside
from gossamer.pruning.methods import Method
from gossamer.pruning.solvers import LayerProblem, LayerSolution, damped
from gossamer.pruning.targets import Target


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages that operations make inside the block, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            value.untyped_storage()._cdata
            for value in tree_leaves((args, kwargs))
            if isinstance(value, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor) and value.device.type != "meta":
                storage = value.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if key not in given and key not in self._known:
                    self._known.add(key)
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._remove, key, size)
        return result

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def give_back_free_memory() -> None:
    """Let the system have the pages that freed tensors left in the heap.

    glibc keeps blocks of up to 32 MiB for later; with batches of activations freed in another order
    than they were made, half of the process would soon be holes. Other libraries have no such call.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


# Which outputs a layer reproduces: its own on the pruned model's inputs, or the dense model's.
Match = Literal["pruned", "dense"]


@dataclass(frozen=True)
class LayerProgress:
    """One layer is done.

    Attributes:
        name: of the layer.
        index: how many are done.
        total: how many there are.
        error: change of its outputs on the calibration data as a part of their square; None where
            no Gram matrix of its inputs was needed, or its solution was in the journal.
        seconds: of statistics and solution.
        notes: of the solver.
    """

    name: str
    index: int
    total: int
    error: float | None
    seconds: float
    notes: tuple[str, ...] = ()


class Journal:
    """What is done already and where more is noted; this one remembers nothing."""

    def recall(self, name: str) -> LayerSolution | None:
        """The solution of a layer from an earlier, interrupted run."""
        return None

    def note(self, name: str, solution: LayerSolution) -> None:
        """Remember a solution."""

    def of_stage(self, number: int) -> "Journal":
        """The part of one stage of a recipe: a later stage may solve the same layers again."""
        return self


@dataclass(frozen=True)
class CalibratedPruning:
    """Everything that decides the result.

    Attributes:
        method: how one layer is pruned.
        pattern: which masks are legal.
        match: what a layer reproduces.
        damping: of the inputs' Gram matrix, for match="dense".
        journal: of an interruptible run.
        progress: called after each layer.
    """

    method: Method
    pattern: Pattern
    match: Match = "pruned"
    damping: float = 0.01
    journal: Journal = field(default_factory=Journal)
    progress: Callable[[LayerProgress], None] = lambda done: None

    def run(
        self,
        model: nn.Module,
        batches: Sequence[Batch],
        targets: Sequence[Target],
        counts: Sequence[int],
    ) -> dict[str, LayerSolution]:
        """New weights for all targets, written into the model; an error leaves it as it was.

        Args:
            model: runs in eval mode without gradients and gets its modes back.
            batches: calibration data; all are held at once.
            targets: layers, in any order: data decides in which one they are met.
            counts: kept weights of each.
        """
        statistics = Statistics(self.method.statistics, batches)
        kept = {target.name: count for target, count in zip(targets, counts, strict=True)}
        solutions: dict[str, LayerSolution] = {}
        weights = [target.weight for target in targets]
        with unchanged_on_error(model, contents=weights), evaluating(model), torch.no_grad():
            teacher = copy.deepcopy(model) if self.match == "dense" else None
            statistics.look_ahead(model, targets)
            for target, stop, dense in _walk(model, teacher, batches, targets):
                started = time.perf_counter()
                solution = self.journal.recall(target.name)
                error: float | None = None
                if solution is not None and solution.mask_RK.numel() != target.weight.numel():
                    solution = None  # a stage before measured, and cut this layer otherwise
                if solution is None:
                    solution, error = self._solved(
                        target, stop, dense, statistics, kept[target.name]
                    )
                    check_inside(target.name, solution.mask_RK, target.mask, self.pattern)
                    self.journal.note(target.name, solution)
                target.weight.data.copy_(solution.weight_RK.view(target.weight.shape))
                # The model holds the weights now; a second copy of all of them is not needed.
                written_RK = target.weight.detach().flatten(1)
                solutions[target.name] = replace(solution, weight_RK=written_RK)
                give_back_free_memory()
                self.progress(
                    LayerProgress(
                        target.name,
                        len(solutions),
                        len(targets),
                        error,
                        time.perf_counter() - started,
                        solution.notes,
                    )
                )
            check_all_met(targets, solutions, f"method {self.method.name!r} cannot prune it")
        return solutions

    def _solved(
        self,
        target: Target,
        stop: Stop,
        dense: Stop | None,
        statistics: Statistics,
        count: int,
    ) -> tuple[LayerSolution, float | None]:
        """The solution, and the change of the outputs where it is known."""
        if num_parts(target.module) > 1 and self.method.statistics != "none":
            if dense is not None:
                raise InputError(
                    f"{target.name}: its experts see other tokens in the pruned model than in the"
                    " dense one, so match='dense' cannot compare them. Use match='pruned'."
                )
            parts = expert_problems(target, stop, self.method.statistics, self.pattern, count)
            return prune_experts(self.method, parts, target.weight.shape[1])
        problem = self._problem(target, stop, dense, statistics, count)
        solution = self.method.solve(problem)
        known = problem.gram_KK is not None and problem.gram_KK.ndim == 2
        return solution, problem.error(solution.weight_RK) if known else None

    def _problem(
        self,
        target: Target,
        stop: Stop,
        dense: Stop | None,
        statistics: Statistics,
        count: int,
    ) -> LayerProblem:
        problem = problem_of(target, statistics.of(target, stop), self.pattern, count)
        weight_RK, gram_KK = problem.weight_RK, problem.gram_KK
        if dense is None or gram_KK is None or gram_KK.ndim != 2:
            return problem
        drift_KK = statistics.drift(target, stop, dense)
        factor_KK = damped(gram_KK, self.damping).factor_KK
        # The unpruned weight that best gives the dense model's outputs from these inputs.
        moved_RK = torch.cholesky_solve((weight_RK @ drift_KK).T, factor_KK).T
        return replace(problem, weight_RK=weight_RK + moved_RK)


def _walk(
    model: nn.Module,
    teacher: nn.Module | None,
    batches: Sequence[Batch],
    targets: Sequence[Target],
) -> Iterator[tuple[Target, Stop, Stop | None]]:
    """The targets as data meets them, each with the dense model's stop if there is a teacher."""
    flow = met_targets(model, batches, targets)
    if teacher is None:
        yield from ((target, stop, None) for target, stop in flow)
        return
    twins = [Target(target.name, teacher.get_submodule(target.name)) for target in targets]
    dense_flow = met_targets(teacher, batches, twins)
    for (target, stop), (twin, dense) in zip(flow, dense_flow, strict=True):
        if twin.name != target.name or dense.batches != stop.batches:
            raise InputError(
                f"{target.name}: pruned and dense model took different ways through the model, so"
                " match='dense' cannot compare them. Use match='pruned'."
            )
        yield target, stop, dense


def met_targets(
    model: nn.Module, batches: Sequence[Batch], targets: Sequence[Target]
) -> Iterator[tuple[Target, Stop]]:
    """The targets in the order in which data meets them, with what is about to enter each."""
    by_module: dict[nn.Module, Target] = {target.module: target for target in targets}
    for stop in stops([batch.call(model) for batch in batches], list(by_module)):
        yield by_module[stop.module], stop


def problem_of(
    target: Target, gram_KK: torch.Tensor | None, pattern: Pattern, count: int
) -> LayerProblem:
    """The weight of a layer as [R, K] in float32 or float64, inside the mask that it has."""
    weight_RK = target.weight.detach().flatten(1)
    weight_RK = weight_RK if weight_RK.dtype == torch.float64 else weight_RK.float()
    if target.mask is not None:
        weight_RK = torch.where(target.mask, weight_RK, 0.0)
    return LayerProblem(target.name, weight_RK, gram_KK, pattern, count, target.mask)


def check_all_met(targets: Sequence[Target], met: Collection[str], consequence: str) -> None:
    """Refuse layers that data did not meet."""
    missed = [target.name for target in targets if target.name not in met]
    if missed:
        raise InputError(
            f"{missed[0]}: no calibration batch reached this layer ({len(missed)} in all),"
            f" so {consequence}. Its module may read .weight without calling the layer, as"
            " nn.MultiheadAttention does with out_proj. Give other data, or add the layer to"
            " ignore=[...]."
        )
