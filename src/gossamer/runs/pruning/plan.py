# SPDX-License-Identifier: Apache-2.0
"""What a prune stage with calibration data would keep, need and take; nothing is changed.

Memory: one batch is run through the model and its live activations are counted at every layer
where all batches will stand. Time: the forward, one Gram matrix and one solution per shape are
timed.
"""

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from gossamer.errors import RecipeError
from gossamer.method_table import METHODS
from gossamer.nn.batch import Batch
from gossamer.pruning import Method
from gossamer.pruning.calibration import LiveBytes
from gossamer.pruning.calibration.flow import evaluating, stops
from gossamer.pruning.calibration.statistics import gram
from gossamer.pruning.solvers import LayerProblem
from gossamer.pruning.targets import Target
from gossamer.recipes.stages import Prune
from gossamer.runs.pruning.request import PruneRequest, check_request, prepare
from gossamer.runs.stages import StageInput
from gossamer.runs.stages.prune import PreparedStage, method_of, prepare_stage
from gossamer.runs.voice import Voice

# Gram matrix, its damped copy, factor, inverse and its factor; then the weight and what solves it.
_GRAMS_HELD = 5
_WEIGHTS_HELD = 6
_REFIT_BYTES = 3 * (1 << 26)


@dataclass(frozen=True)
class PlannedLayer:
    """One layer: what is kept of it, and how long its solution takes."""

    name: str
    shape: tuple[int, ...]
    pattern: str
    kept: int
    seconds: float


@dataclass(frozen=True)
class StagePlan:
    """A prune stage before it is run.

    Attributes:
        layers: in the order in which data meets them.
        num_tokens: rows of calibration data.
        process_bytes: resident now, model included.
        activation_bytes: of all batches where they take most.
        copy_bytes: the weights as they were (for an error), and the dense model for match: dense.
        solver_bytes: of the largest layer.
        seconds: of everything on this machine, as it is now.
    """

    layers: list[PlannedLayer]
    num_tokens: int
    process_bytes: int
    activation_bytes: int
    copy_bytes: int
    solver_bytes: int
    seconds: float

    @property
    def peak_bytes(self) -> int:
        """Resident memory of the process at its peak."""
        return self.process_bytes + self.activation_bytes + self.copy_bytes + self.solver_bytes


def plan_prune(request: PruneRequest, voice: Voice) -> StagePlan:
    """The plan of the first prune stage; the model is loaded, one batch is run, nothing written."""
    steps = request.recipe.steps_of(Prune)
    if not steps or request.data is None:
        raise RecipeError(
            "--dry-run: plans stages that prune with calibration data. Give --data FILE and a"
            " recipe with such a stage; others take seconds."
        )
    files = check_request(request)
    with voice.stage("loading"):
        source = request.origin.load(voice.note)
        batches = prepare(source, request, files).batches or []
    with voice.stage("looking at one batch"):
        return plan_stage(source.model, steps[0], batches)


def plan_stage(model: nn.Module, step: Prune, batches: Sequence[Batch]) -> StagePlan:
    """Look at one batch; raises what the stage itself would raise before its work."""
    if step.needs != "inputs" and not step.refit:
        raise RecipeError(
            f"plan: only methods that look at the inputs of layers are planned, not {step.method}."
        )
    method = method_of(step)
    stage = prepare_stage(model, step, StageInput(batches))
    rows, process_bytes = _tokens(batches), _resident_bytes()
    share = rows / _tokens(batches[:1])
    with evaluating(model), torch.no_grad():
        started = time.perf_counter()
        batches[0].run(model)
        forward = (time.perf_counter() - started) * share
        # Targets in the order data meets them, most live bytes at a stop, and what comes on top.
        by_module = {target.module: target for target in stage.targets}
        order, alive = [], 0
        with LiveBytes() as live:
            for stop in stops([batches[0].call(model)], list(by_module)):
                order.append(by_module[stop.module])
                alive = max(alive, live.now)
        once = live.peak - alive
    solve_seconds, gram_seconds = _time_layers(method, stage, rows)
    kept = dict(zip((target.name for target in stage.targets), stage.counts, strict=True))
    layers = [
        PlannedLayer(
            target.name,
            tuple(target.weight.shape),
            step.pattern,
            kept[target.name],
            solve_seconds[_matrix_shape(target)],
        )
        for target in order
    ]
    seconds = forward + gram_seconds + sum(layer.seconds for layer in layers)
    copies = sum(target.weight.nbytes for target in stage.targets)
    if step.match == "dense":
        copies += sum(parameter.nbytes for parameter in model.parameters())
        alive *= 2
        seconds += forward
    return StagePlan(
        layers,
        rows,
        process_bytes,
        int(alive * share) + once,
        copies,
        _solver_bytes(stage, method, step),
        seconds,
    )


def _time_layers(
    method: Method, stage: PreparedStage, rows: int
) -> tuple[dict[tuple[int, int], float], float]:
    """Seconds of one solution per shape, and of all Gram matrices."""
    solve: dict[tuple[int, int], float] = {}
    gram_seconds = 0.0
    sampled: dict[int, tuple[torch.Tensor, float]] = {}
    for target, count in zip(stage.targets, stage.counts, strict=True):
        shape = _, columns = _matrix_shape(target)
        if columns not in sampled:
            x_TK = torch.randn(max(256, 2 * columns), columns)
            started = time.perf_counter()
            gram_KK = gram(x_TK) / len(x_TK)
            sampled[columns] = gram_KK, (time.perf_counter() - started) / len(x_TK)
        gram_KK, per_row = sampled[columns]
        if method.statistics == "gram":
            gram_seconds += per_row * rows
        if shape not in solve:
            weight_RK = target.weight.detach().flatten(1).float()
            needed = {"none": None, "squares": gram_KK.diagonal(), "gram": gram_KK}
            problem = LayerProblem(
                target.name, weight_RK, needed[method.statistics], stage.pattern, count
            )
            started = time.perf_counter()
            method.solve(problem)
            solve[shape] = time.perf_counter() - started
    return solve, gram_seconds


def _solver_bytes(stage: PreparedStage, method: Method, step: Prune) -> int:
    grams = _GRAMS_HELD if method.statistics == "gram" else 0
    largest = max(
        4 * columns * (columns * grams + _WEIGHTS_HELD * rows)
        for rows, columns in map(_matrix_shape, stage.targets)
    )
    solves_rows = step.needs is not None and METHODS[step.method].solves_rows
    return largest + (_REFIT_BYTES if step.refit or solves_rows else 0)


def _matrix_shape(target: Target) -> tuple[int, int]:
    return target.weight.shape[0], target.weight.shape[1:].numel()


def _tokens(batches: Sequence[Batch]) -> int:
    """Positions of the first tensor of each batch, padding included."""
    tensors = [batch.first_tensor() for batch in batches]
    return max(sum(1 if t is None else t.shape[:2].numel() for t in tensors), 1)


def _resident_bytes() -> int:
    """Resident memory of this process now."""
    try:
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
