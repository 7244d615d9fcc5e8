# SPDX-License-Identifier: Apache-2.0
"""The moment of slimming: masks are final, and what is dead in the model is cut out of it.

The optimizer's state moves along, the schedule lets go, and the run goes on with the smaller model.
"""

from typing import Any

import torch

from gossamer.errors import InputError, TargetError
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.surgery.channels import (
    LayerSizes,
    cut_dead_channels,
    cut_sizes,
    read_channels,
    restore_cut,
)
from gossamer.nn.surgery.dead_units import cut_dead_units, cut_to_counts
from gossamer.nn.surgery.slimming import unit_counts
from gossamer.training.checkpoint.random_state import undisturbed_random
from gossamer.training.loop.processes import loss_of
from gossamer.training.loop.run import NoControl, TrainingRun
from gossamer.training.memory import measure


def check_slim(run: TrainingRun) -> None:
    """InputError if nothing of the model could be cut, before half of the run is over."""
    example = run.around.example
    try:
        if unit_counts(run.model):
            return
        if example is None or not read_channels(run.model, example).layers:
            raise TargetError("the task gives no example of its input")
    except TargetError as error:
        raise InputError(
            f"compaction: slim cannot cut this {type(run.model).__name__}: {error} Use auto."
        ) from error


def slim(run: TrainingRun) -> dict[str, Any]:
    """Cut the model of a run; what a compaction logs."""
    before = measure(run.model, run.optimizer).total_bytes
    example: Any = run.around.example
    sparsity = run.control.sparsity()
    expected = _answer(run, example)
    _let_go(run)
    if unit_counts(run.model):
        sizes = sum(p.numel() for p in run.model.parameters())
        blocks = cut_dead_units(run.model, run.optimizer)
        counts, layers = (sizes, sum(p.numel() for p in run.model.parameters())), len(blocks)
    else:
        cut = cut_dead_channels(run.model, example, run.optimizer)
        counts, layers = cut.parameters, len(cut.layers)
    apart = (_answer(run, example) - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
    return {
        "layers": layers,
        "left_masked": sorted(name for name, _ in sparse_layers(run.model, "masked")),
        "weights": counts[0],
        "values": counts[1],
        "sparsity": sparsity,
        "bytes_before": before,
        "bytes_after": measure(run.model, run.optimizer).total_bytes,
        "modes": {},
        "outputs_apart": float(apart),
    }


def slim_state(run: TrainingRun, *, is_done: bool) -> dict[str, Any]:
    """What was cut, for a checkpoint."""
    if not is_done or run.settings.compaction != "slim":
        return {}
    return {
        "channels": {name: vars(sizes) for name, sizes in cut_sizes(run.model).items()},
        "units": [list(counts) for counts in unit_counts(run.model)],
    }


def restore_slim(run: TrainingRun, state: dict[str, Any]) -> None:
    """Cut the model of a resumed run as a checkpoint says; its weights follow."""
    _let_go(run)
    sizes = {name: LayerSizes(**entry) for name, entry in state["channels"].items()}
    restore_cut(run.model, sizes, run.optimizer)
    if state["units"]:
        cut_to_counts(run.model, state["units"], run.optimizer)


@torch.no_grad()
def _answer(run: TrainingRun, example: torch.Tensor | None) -> torch.Tensor:
    """What the model says of the example, as it would be used; its loss where there is none."""
    run.model.eval()
    with undisturbed_random():
        if example is None:
            answer, _ = loss_of(run.objective, run.model, run.batches[run.taken])
        else:
            answer = run.model(example)
    run.model.train(run.settings.in_train_mode)
    return answer


def _let_go(run: TrainingRun) -> None:
    run.control.close()
    run.control = NoControl(run.model)
