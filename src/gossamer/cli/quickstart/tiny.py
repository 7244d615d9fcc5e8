# SPDX-License-Identifier: Apache-2.0
"""The built-in quickstart: train, prune, compact, recover, save, load, compile, measure."""

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import nn

from gossamer.cli.quickstart.output import (
    DENSE_FOLDER,
    INT8_FOLDER,
    MODEL_FOLDER,
    NOTE,
    Story,
    compare,
    compile_afresh,
    dense_int8,
    forward,
    sparse_layers_text,
)
from gossamer.cli.quickstart.where import try_zeros
from gossamer.cli.shell import Output
from gossamer.io import load, save
from gossamer.nn.surgery.compaction import compact
from gossamer.report import Page, format_bytes
from gossamer.report.charts import Curve
from gossamer.report.page import TextTable
from gossamer.running.layers import explain
from gossamer.runs import prune
from gossamer.runs.sources import directory_bytes
from gossamer.training.memory import measure
from gossamer.zoo import MLP, accuracy, cluster_problem
from gossamer.zoo.problems import Split

_SIZES = (64, 768, 768, 8)
_DENSE_STEPS = 300
_RECOVERY_STEPS = 400
_BATCH = 128
_LEARNING_RATE = 1e-3
_TOKENS = (1, 128, 1024)
# Of the layer that shows where zeros pay.
_TRIED = (768, 768)


@dataclass
class _Run:
    """A model in training and what happened to it so far."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: Split
    generator: torch.Generator
    losses: list[float] = field(default_factory=list)

    def train(self, num_steps: int, advance: Callable[[], None]) -> None:
        """Adam steps with a learning rate that falls to zero."""
        self.model.train()
        for step in range(num_steps):
            for group in self.optimizer.param_groups:
                group["lr"] = _LEARNING_RATE * (1 - step / num_steps)
            rows = torch.randint(len(self.data.x_train), (_BATCH,), generator=self.generator)
            loss = nn.functional.cross_entropy(
                self.model(self.data.x_train[rows]), self.data.y_train[rows]
            )
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.losses.append(loss.item())
            advance()
        self.model.eval()

    def quality(self, model: nn.Module) -> float:
        """Accuracy of a model on the test set."""
        return accuracy(forward(model, self.data.x_test), self.data.y_test)


def run_tiny(folder: Path, sparsity: float, out: Output) -> Story:
    """The whole story on an MLP and a synthetic problem."""
    generator = torch.Generator().manual_seed(0)
    data = cluster_problem(generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        mlp = MLP(_SIZES)
    run = _Run(mlp, torch.optim.AdamW(mlp.parameters(), lr=_LEARNING_RATE), data, generator)
    with out.stage(f"training a dense MLP, {_DENSE_STEPS} steps", total=_DENSE_STEPS) as stage:
        run.train(_DENSE_STEPS, stage.advance)
    dense, dense_quality = copy.deepcopy(run.model), run.quality(run.model)
    before = measure(run.model, run.optimizer).total_bytes
    paths = [folder / name for name in (DENSE_FOLDER, MODEL_FOLDER, INT8_FOLDER)]
    with out.stage("pruning and compacting"):
        report = prune(run.model, sparsity=sparsity, budget="global", out=paths[1], timed=False)
        pruned_quality = run.quality(run.model)
        compaction = compact(run.model, run.optimizer)
    after = measure(run.model, run.optimizer).total_bytes
    with out.stage(f"recovering, {_RECOVERY_STEPS} steps", total=_RECOVERY_STEPS) as stage:
        run.train(_RECOVERY_STEPS, stage.advance)
    with out.stage("saving and loading"):
        save(dense, paths[0], format="dense")
        save(run.model, paths[1], report=report)
        loaded = load(paths[1])
    x = run.data.x_test
    same = torch.equal(forward(loaded, x), forward(run.model, x))
    with out.stage("timing dense, pruned and dense int8"):
        fast = compile_afresh(loaded, _TOKENS)
        rival = dense_int8(dense, paths[2], _TOKENS)
        large, small, eighth = map(directory_bytes, paths)
        comparison = compare(
            (dense, fast, rival),
            ("accuracy", dense_quality, run.quality),
            (large, small, eighth),
            {f"batch {count}": x[:count] for count in _TOKENS},
            0.8,
        )
    with out.stage("timing one layer with more and more zeros"):
        zeros = try_zeros(_TRIED, _BATCH)
    layers = explain(fast)
    steps = (
        (f"Trained a dense MLP for {_DENSE_STEPS} steps.", f"accuracy {dense_quality:.3f}"),
        (
            f"Pruned {report.sparsity:.0%} by magnitude, shared over the layers.",
            f"accuracy {pruned_quality:.3f}",
        ),
        ("Made the kept values the Parameters.", str(compaction)),
        (
            f"Trained the compact model for {_RECOVERY_STEPS} steps.",
            f"accuracy {run.quality(run.model):.3f}",
        ),
        ("Saved and loaded it.", "same outputs, bit for bit" if same else "outputs differ"),
        ("Compiled it for this machine and timed it.", sparse_layers_text(layers)),
    )
    sizes = format_bytes(before), format_bytes(after)
    losses = tuple((float(step), loss) for step, loss in enumerate(run.losses))
    page = Page(
        title="gossamer quickstart: a pruned MLP",
        lead="A small network was trained, pruned, trained on with compact state, saved, loaded and"
        " run. Every number below was measured just now on this machine.",
        comparison=comparison,
        layers=layers,
        steps=steps,
        curves=(Curve("Training loss", losses, ((float(_DENSE_STEPS), "pruned and compacted"),)),),
        tables=(
            TextTable(
                "Memory that training holds",
                ("", "dense", "compact", "ratio"),
                (("parameters, gradients, AdamW, positions", *sizes, f"{before / after:.2f}x"),),
                "Measured by walking every storage of the model and the optimizer.",
            ),
            zeros.table(),
        ),
        notes=(
            "The data is synthetic: eight classes, each a union of Gaussian clusters. Accuracy is"
            " on samples that were not trained on.",
            f"The pruned model was trained {_RECOVERY_STEPS} steps longer than the dense one.",
            NOTE,
            "The model is tiny: at batch 1 a call costs about as much as the arithmetic.",
        ),
    )
    memory = f"{sizes[0]} dense, {sizes[1]} compact ({before / after:.1f}x less)"
    return Story(
        page,
        {
            "training_state_bytes": {"dense": before, "compact": after},
            "where_zeros_pay": asdict(zeros),
        },
        [zeros.sentence(), f"Training state: {memory}."],
    )
