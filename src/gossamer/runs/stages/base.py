# SPDX-License-Identifier: Apache-2.0
"""What every stage of a recipe is given, and what it gives back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import nn

from gossamer.errors import RecipeError
from gossamer.nn.batch import Batch
from gossamer.pruning import LayerResult
from gossamer.pruning.calibration import Journal, LayerProgress
from gossamer.pruning.gradients import Loss
from gossamer.pruning.gradients.losses import default_loss
from gossamer.recipes.stages import StageSettings
from gossamer.runs.kept_run import KeptRun
from gossamer.runs.stages.recover_data import RecoverySamples


@dataclass(frozen=True)
class StageInput:
    """What a stage may use.

    Attributes:
        batches: calibration data; None if the user gave none.
        loss: of a batch, for methods that look at gradients; None: see `prune.losses`.
        journal: remembers solved layers, for runs that can be interrupted.
        progress: called after each layer.
        teacher: the dense model, for stages that train; None: the model as it is before the first
            stage.
        samples: what recovery trains on; None: the calibration batches.
        kept: where recovery keeps its checkpoints and metrics; None keeps nothing.
        say: gets a line for people whenever recovery has looked at the model.
        watch: a score for the curve of recovery; it decides nothing and its time does not count.
        tick: called where it is safe to stop, after every step of training with its number and how
            many there are (0, 0 where that is not known); what it raises ends the stage.
    """

    batches: Sequence[Batch] | None = None
    loss: Loss | None = None
    journal: Journal = field(default_factory=Journal)
    progress: Callable[[LayerProgress], None] = lambda done: None
    teacher: nn.Module | None = None
    samples: RecoverySamples | None = None
    kept: KeptRun | None = None
    say: Callable[[str], None] = lambda text: None
    watch: Callable[[nn.Module], float] | None = None
    tick: Callable[[int, int], None] = lambda done, total: None

    def needed_batches(self, asker: str) -> Sequence[Batch]:
        """The batches, or an error that says how to give some."""
        if self.batches is None:
            raise RecipeError(
                f"recipe: {asker} looks at what data does in the model and needs calibration data:"
                " data=[...], or --data FILE on the command line."
            )
        return self.batches

    def needed_loss(self, model: nn.Module) -> Loss:
        """The user's loss, or one that fits the model's outputs."""
        return self.loss or default_loss(model, self.needed_batches("a loss")[0])

    def needed_teacher(self) -> nn.Module:
        """The dense model to learn from."""
        if self.teacher is None:
            raise RecipeError("there is no dense model to learn from.")
        return self.teacher

    def of_stage(self, number: int) -> "StageInput":
        """The part of one stage: a journal and a folder of its own."""
        kept = None if self.kept is None else self.kept.of_stage(number)
        # A curve costs an evaluation per check: only where it is kept.
        watch = None if kept is None else self.watch
        return replace(self, journal=self.journal.of_stage(number), kept=kept, watch=watch)


@dataclass(frozen=True)
class StageOutcome:
    """What a stage did.

    Attributes:
        notes: what the user should know.
        layers: the layers it pruned.
        changed_shapes: masks of earlier stages are not verified right after it.
    """

    notes: list[str]
    layers: list[LayerResult] = field(default_factory=list)
    changed_shapes: bool = False


def call_model(model: nn.Module, batch: Batch) -> Any:
    """What the model says of a batch."""
    return batch.run(model)


def same_fields(step: StageSettings, words: type[Any]) -> dict[str, Any]:
    """What a stage says in the fields that a dataclass of another room has, too."""
    return step.model_dump(include={field.name for field in fields(words)})
