# SPDX-License-Identifier: Apache-2.0
"""The built-in quickstart: train, prune, compact, recover, save, load, compile, measure."""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from gossamer.cli.bench import int8_rival
from gossamer.cli.quickstart.output import (
    DENSE_FOLDER,
    MODEL_FOLDER,
    Story,
    compile_afresh,
    sparse_layers_text,
)
from gossamer.cli.shell import Output, ProgressStage
from gossamer.io import load, save
from gossamer.nn.surgery.compaction import compact
from gossamer.ops.timing import duel, one_thread
from gossamer.report import Comparison, Figure, Page, TextTable, describe_machine, format_bytes
from gossamer.report.charts import Curve
from gossamer.running.layers import Explanation, explain
from gossamer.runs import directory_bytes, sparsify
from gossamer.training.memory import measure
from gossamer.zoo import MLP, Split, accuracy, cluster_problem

_SIZES = (64, 768, 768, 8)
_DENSE_STEPS = 300
_RECOVERY_STEPS = 400
_BATCH = 128
_LEARNING_RATE = 1e-3
_TOKENS = (1, 128, 1024)


@dataclass
class _Run:
    """A model in training and what happened to it so far."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: Split
    generator: torch.Generator
    losses: list[float] = field(default_factory=list)

    def train(self, num_steps: int, stage: ProgressStage) -> None:
        """Adam steps with a learning rate that falls to zero."""
        self.model.train()
        for step in range(num_steps):
            for group in self.optimizer.param_groups:
                group["lr"] = _LEARNING_RATE * (1 - step / num_steps)
            rows = torch.randint(len(self.data.x_train), (_BATCH,), generator=self.generator)
            logits = self.model(self.data.x_train[rows])
            loss = nn.functional.cross_entropy(logits, self.data.y_train[rows])
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.losses.append(loss.item())
            stage.advance()
        self.model.eval()

    def quality(self, model: nn.Module | None = None) -> float:
        """Accuracy on the test set."""
        with torch.inference_mode():
            logits = (self.model if model is None else model)(self.data.x_test)
        return accuracy(logits, self.data.y_test)


def run_tiny(folder: Path, sparsity: float, out: Output) -> Story:
    """The whole story on an MLP and a synthetic problem, on one thread.

    Threads gain nothing on layers this small, and lose much on a busy machine.
    """
    with one_thread():
        return _run_tiny(folder, sparsity, out)


def _run_tiny(folder: Path, sparsity: float, out: Output) -> Story:
    run = _start()
    steps: list[tuple[str, str]] = []
    with out.stage(f"training a dense MLP, {_DENSE_STEPS} steps", total=_DENSE_STEPS) as stage:
        run.train(_DENSE_STEPS, stage)
    dense, dense_quality = copy.deepcopy(run.model), run.quality()
    state_dense = measure(run.model, run.optimizer).total_bytes
    steps.append(
        (f"Trained a dense MLP for {_DENSE_STEPS} steps.", f"accuracy {dense_quality:.3f}")
    )
    with out.stage("pruning and compacting"):
        report = sparsify(run.model, sparsity=sparsity, budget="global")
        pruned_quality = run.quality()
        compaction = compact(run.model, run.optimizer)
    state_compact = measure(run.model, run.optimizer).total_bytes
    steps += [
        (
            f"Pruned {report.sparsity:.0%} by magnitude, shared over the layers.",
            f"accuracy {pruned_quality:.3f}",
        ),
        ("Made the kept values the Parameters.", str(compaction)),
    ]
    with out.stage(f"recovering, {_RECOVERY_STEPS} steps", total=_RECOVERY_STEPS) as stage:
        run.train(_RECOVERY_STEPS, stage)
    steps.append(
        (f"Trained the compact model for {_RECOVERY_STEPS} steps.", f"accuracy {run.quality():.3f}")
    )
    with out.stage("saving and loading"):
        save(dense, folder / DENSE_FOLDER, format="dense")
        save(run.model, folder / MODEL_FOLDER, report=report)
        loaded = load(folder / MODEL_FOLDER)
    same = torch.equal(_logits(loaded, run.data.x_test), _logits(run.model, run.data.x_test))
    steps.append(
        ("Saved and loaded it.", "same outputs, bit for bit" if same else "outputs differ")
    )
    with out.stage("timing dense and pruned"):
        fast = compile_afresh(loaded, _TOKENS)
        figures, rival_quality = _measure(run, dense, fast, folder)
    layers = explain(fast)
    steps.append(("Compiled it for this machine and timed it.", sparse_layers_text(layers)))
    quality = Figure("accuracy", "score", (dense_quality, run.quality(fast), rival_quality))
    state = (state_dense, state_compact)
    return _tell(
        Comparison(("dense", "pruned", int8_rival.NAME), (quality, *figures)),
        layers,
        run,
        steps,
        state,
    )


def _start() -> _Run:
    generator = torch.Generator().manual_seed(0)
    data = cluster_problem(generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP(_SIZES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    return _Run(model, optimizer, data, generator)


def _measure(
    run: _Run, dense: nn.Module, fast: nn.Module, folder: Path
) -> tuple[list[Figure], float | None]:
    """Bytes and times of dense, pruned and dense int8; and the accuracy of the last."""
    rival = int8_rival.dense_int8(dense)
    sizes = (
        directory_bytes(folder / DENSE_FOLDER),
        directory_bytes(folder / MODEL_FOLDER),
        None if rival is None else int8_rival.int8_bytes(dense),
    )
    figures = [Figure("bytes on disk", "bytes", sizes)]
    for count in _TOKENS:
        x_TK = run.data.x_test[:count]
        times = duel(
            _forward(dense, x_TK), _forward(fast, x_TK), budget_seconds=0.5, max_rounds=2000
        )
        rival_ms = None
        if rival is not None:
            both = duel(_forward(fast, x_TK), _forward(rival, x_TK), budget_seconds=0.3)
            rival_ms = both.second_us / 1000
        values = (times.first_us / 1000, times.second_us / 1000, rival_ms)
        figures.append(Figure(f"ms, batch {count}", "ms", values, times.doubt))
    return figures, None if rival is None else run.quality(rival)


def _forward(model: nn.Module, x_TK: torch.Tensor) -> Callable[[], torch.Tensor]:
    return functools.partial(_logits, model, x_TK)


def _logits(model: nn.Module, x_TK: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(x_TK)
    return logits


def _tell(
    comparison: Comparison,
    layers: Explanation,
    run: _Run,
    steps: list[tuple[str, str]],
    state: tuple[int, int],
) -> Story:
    before, after = state
    memory = (
        f"Training state: {format_bytes(before)} dense, {format_bytes(after)} compact"
        f" ({before / after:.1f}x less)."
    )
    notes = (
        "The data is synthetic: eight classes, each a union of Gaussian clusters. Accuracy is on"
        " samples that were not trained on.",
        f"The pruned model was trained {_RECOVERY_STEPS} steps longer than the dense one.",
        int8_rival.NOTE,
        "The model is tiny: at batch 1 a call costs about as much as the arithmetic.",
    )
    page = Page(
        title="gossamer quickstart: a pruned MLP",
        lead="A small network was trained, pruned, trained on with compact state, saved, loaded and"
        " run. Every number below was measured just now on this machine.",
        comparison=comparison,
        layers=layers,
        machine=describe_machine(),
        steps=steps,
        curves=(
            Curve(
                "Training loss",
                tuple((float(step), loss) for step, loss in enumerate(run.losses)),
                ((float(_DENSE_STEPS), "pruned and compacted"),),
            ),
        ),
        tables=(
            TextTable(
                "Memory that training holds",
                ("", "dense", "compact", "ratio"),
                (
                    (
                        "parameters, gradients, AdamW, positions",
                        format_bytes(before),
                        format_bytes(after),
                        f"{before / after:.2f}x",
                    ),
                ),
                "Measured by walking every storage of the model and the optimizer.",
            ),
        ),
        notes=notes,
    )
    extra = {"training_state_bytes": {"dense": before, "compact": after}}
    return Story(page, layers, extra, [memory])
