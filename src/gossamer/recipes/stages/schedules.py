# SPDX-License-Identifier: Apache-2.0
"""When masks are made and how they move, as data: frozen, closed to unknown keys, free of torch.

A moment is a step (a whole number) or a fraction of the run (a number with a point): `end: 750` and
`end: 0.75` are the same in a run of 1000 steps. Step 0 is before the first optimizer step.
"""

from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from gossamer.errors import PatternError
from gossamer.recipes.base import (
    MAX_STEPS,
    BelowOne,
    Count,
    Fraction,
    Ignored,
    PatternName,
    Seed,
    Settings,
    Share,
    Targets,
    pattern_faults,
    raise_faults,
    read_pattern,
)

__all__ = [
    "SCHEDULES",
    "IterativeSettings",
    "Moment",
    "Schedule",
    "ScheduleSettings",
    "WindowSettings",
    "step_of",
]

Budget = Annotated[
    Literal["uniform", "global", "erk", "half-erk"],
    Field(description="How the sparsity is shared among layers."),
]


def _moment(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError(
            "moment_type", "expected a step (whole number) or a fraction of the run"
        )
    if isinstance(value, int) and not 0 <= value <= MAX_STEPS:
        raise PydanticCustomError("moment_range", "a step must be at least 0")
    if isinstance(value, float) and not 0.0 <= value <= 1.0:
        raise PydanticCustomError("moment_range", "a fraction of the run must be in [0.0, 1.0]")
    return value


Moment = Annotated[int | float, BeforeValidator(_moment)]


class ScheduleSettings(Settings):
    """What all schedules have."""

    fractions: ClassVar = {"sparsity": "[0, 1)"}
    # The field that says when masks first move; "": with the first step.
    begins: ClassVar[str] = ""

    sparsity: BelowOne | None = None
    """Fraction of zeros at the end; left out where the pattern fixes it."""
    pattern: PatternName = "unstructured"
    """Which zeros are legal: unstructured, 2:4, block:4x4."""
    budget: Budget = "uniform"
    targets: Targets = None
    ignore: Ignored = None
    seed: Seed = 0
    """Of everything drawn at random."""

    @property
    def fixed_density(self) -> float | None:
        """The kept fraction that the pattern fixes; None where any is legal."""
        return read_pattern(self.pattern).fixed_density

    @model_validator(mode="before")
    @classmethod
    def _budget_of_fixed_patterns(cls, data: Any) -> Any:
        """A pattern that fixes its density leaves nothing to share, so defaults give way to it."""
        if not isinstance(data, dict) or "budget" in data:
            return data
        try:
            fixed = read_pattern(data.get("pattern", "unstructured")).fixed_density
        except (PatternError, AttributeError, TypeError):
            return data
        return data if fixed is None else {**data, "budget": "uniform"}

    def first_step(self, total_steps: int) -> int:
        """The first step after which masks may move in a run of `total_steps`."""
        return step_of(getattr(self, self.begins), total_steps) if self.begins else 0

    @model_validator(mode="after")
    def _check_pattern(self) -> Self:
        raise_faults(pattern_faults(self.model_dump()))
        return self


class WindowSettings(ScheduleSettings):
    """A schedule that acts again and again between two moments."""

    begin: Moment = 0
    """Nothing happens up to here."""
    end: Moment = 0.75
    """The last moment at which masks move."""
    every: Moment = 100
    """Between two mask updates."""

    @model_validator(mode="after")
    def _forwards(self) -> Self:
        check_order(self, "begin", "end")
        if not self.every:
            raise ValueError("every: must be at least one step, got 0.")
        return self


class OneShotSettings(ScheduleSettings):
    """All at once at one moment."""

    begins: ClassVar[str] = "at"
    kind: Literal["oneshot"] = "oneshot"
    at: Moment = 0.5
    """When the mask is made; it never moves again."""


class GradualSettings(WindowSettings):
    """Gradual magnitude pruning: sparsity rises along a cubic, fast first."""

    begins: ClassVar[str] = "begin"
    kind: Literal["gradual"] = "gradual"
    budget: Budget = "erk"
    initial_sparsity: BelowOne = 0.0
    """At `begin`."""
    begin: Moment = 0.1
    """Nothing is pruned up to here."""
    end: Moment = 0.7
    """The full sparsity is reached here."""
    every: Moment = 0.01
    """Between two mask updates."""
    allow_regrow: bool = False
    """Pruned weights go on training in a dense store and may come back."""

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.sparsity is not None and self.initial_sparsity > self.sparsity:
            raise ValueError(
                f"initial_sparsity: {self.initial_sparsity:g} is above sparsity"
                f" {self.sparsity:g}; a schedule never goes backwards."
            )
        return self


class IterativeSettings(ScheduleSettings):
    """Train, prune, go back, again: lottery tickets and rewinding."""

    kind: Literal["iterative"] = "iterative"
    budget: Budget = "global"
    rounds: int = Field(default=5, ge=1, le=1000)
    """How often is pruned."""
    rewind: Literal["init", "step", "lr", "finetune"] = Field(
        default="step",
        description="After pruning: weights of the start, of `to`, or kept ones with the learning"
        " rate of `to`, or kept ones with the last learning rate.",
    )
    to: Moment = 0.05
    """Where `step` and `lr` go back to; a fraction is of one training."""


class RandomSettings(ScheduleSettings):
    """A random mask before training, never moved: the baseline of all others."""

    kind: Literal["random"] = "random"
    budget: Budget = "erk"


class _BeforeTraining(ScheduleSettings):
    budget: Budget = "global"
    rounds: Count = 1
    """Scored and pruned so many times."""
    shuffle_within_layer: bool = False
    """Ablation: keep the layers' counts, draw the positions."""


class SnipSettings(_BeforeTraining):
    """|gradient * weight| before training; needs data and a loss."""

    kind: Literal["snip"] = "snip"


class GraspSettings(_BeforeTraining):
    """Keeps what the gradient flow lives on, weight * Hessian * gradient; needs data and a loss."""

    kind: Literal["grasp"] = "grasp"
    temperature: float = Field(default=200.0, gt=0.0)
    """Logits are divided by it."""


class SynFlowSettings(_BeforeTraining):
    """Synaptic flow before training; needs a batch for its shape only."""

    kind: Literal["synflow"] = "synflow"
    rounds: Count = 100
    """Scored and pruned so many times."""


class _Dynamic(WindowSettings):
    budget: Budget = "erk"
    drop: Share = 0.3
    """Fraction exchanged first; falls with a cosine."""

    @model_validator(mode="after")
    def _counts_stay(self) -> Self:
        if self.budget == "global":
            raise ValueError("budget: global has no scores before training; use erk or uniform.")
        return self


class SetSettings(_Dynamic):
    """Sparse from the start: drops small weights, grows at random (SET)."""

    kind: Literal["set"] = "set"


class RigLSettings(_Dynamic):
    """Sparse from the start: drops small weights, grows where the dense gradient is largest."""

    kind: Literal["rigl"] = "rigl"
    gradient_steps: Count = 1
    """The dense gradient is summed over so many steps; small batches want several."""


class ReopenSettings(_Dynamic):
    """RigL from the masks that are there: their density moves to that of `sparsity`."""

    begins: ClassVar[str] = "begin"
    kind: Literal["reopen"] = "reopen"
    budget: Budget = "uniform"
    drop: Fraction = 0.0
    """Fraction exchanged first, beside what opens or closes; falls with a cosine."""
    gradient_steps: Count = 1
    """The dense gradient is summed over so many steps; small batches want several."""


class TopKastSettings(WindowSettings):
    """A dense store: the largest weights run, somewhat more of them train."""

    kind: Literal["topkast"] = "topkast"
    budget: Budget = "erk"
    exploration: Fraction = 0.1
    """Density that trains beyond what runs; 0 is a mask that never moves."""
    penalty: float = Field(default=1e-4, ge=0.0)
    """Of the squared weights, stronger beyond what runs."""


class AcDcSettings(ScheduleSettings):
    """Compressed and decompressed phases alternate; ends compressed.

    Defaults are those published for 100 epochs. Short runs may want an earlier `end`: the learning
    rate has fallen far by then.
    """

    begins: ClassVar[str] = "begin"
    kind: Literal["acdc"] = "acdc"
    budget: Budget = "global"
    begin: Moment = 0.1
    """First compression."""
    phase: Moment = 0.05
    """Length of a phase."""
    last_dense: Moment = 0.75
    """The last dense phase has begun by here."""
    end: Moment = 0.85
    """Last compression."""
    reset_momentum: bool = False
    """Clear the optimizer's state at each decompression."""

    @model_validator(mode="after")
    def _forwards(self) -> Self:
        check_order(self, "begin", "last_dense")
        check_order(self, "last_dense", "end")
        if not self.phase:
            raise ValueError("phase: must be at least one step, got 0.")
        return self


class EarlyBirdSettings(WindowSettings):
    """Trains dense until the mask it would get stops changing, then prunes once."""

    begins: ClassVar[str] = "begin"
    kind: Literal["early_bird"] = "early_bird"
    budget: Budget = "global"
    form: Literal["weights", "channels", "units"] = "weights"
    """Masks by |w|; whole channels by BatchNorm's |gamma|; units: heads and filters."""
    distance: Literal["overlap", "hamming"] = "overlap"
    """Part of the kept weights that changed, or of all weights as in the paper."""
    threshold: Fraction = 0.1
    """Largest distance allowed."""
    history: int = Field(default=5, ge=2, le=100)
    """Masks that must agree."""
    end: Moment = 0.5
    """Drawn here at the latest, agreed or not."""
    every: Moment = 0.01
    """Between two looks at the mask."""
    l1: float = Field(default=1e-4, ge=0.0)
    """On BatchNorm gammas while searching; form channels."""
    coupled: bool = False
    """Channels that shortcuts add to each other go together, so that they can be cut out."""

    @model_validator(mode="after")
    def _whole_channels(self) -> Self:
        if self.form != "channels" and self.coupled:
            raise ValueError("coupled: belongs to form: channels.")
        if self.form == "weights":
            return self
        if self.pattern != "unstructured" or self.budget not in ("global", "uniform"):
            raise ValueError(
                f"form: {self.form} are cut whole, by one threshold (budget global) or the same"
                f" part of each layer (uniform); leave out pattern ({self.pattern}) and budget"
                f" ({self.budget}), or use form weights."
            )
        return self


# A schedule is a row here, a class above and an object in `gossamer.pruning.schedules`.
Schedule = Annotated[
    OneShotSettings
    | GradualSettings
    | IterativeSettings
    | RandomSettings
    | SnipSettings
    | GraspSettings
    | SynFlowSettings
    | SetSettings
    | RigLSettings
    | ReopenSettings
    | TopKastSettings
    | AcDcSettings
    | EarlyBirdSettings,
    Field(discriminator="kind"),
]
SCHEDULES: Final[dict[str, type[ScheduleSettings]]] = {
    made.model_fields["kind"].default: made for made in get_args(get_args(Schedule)[0])
}


def step_of(moment: int | float, total_steps: int) -> int:
    """The step a moment stands for in a run of `total_steps`."""
    return moment if isinstance(moment, int) else round(moment * total_steps)


def check_order(schedule: ScheduleSettings, first: str, second: str) -> None:
    """Raise ValueError if two moments of the same sort are in the wrong order.

    A step and a fraction can only be compared when the length of the run is known.
    """
    early, late = getattr(schedule, first), getattr(schedule, second)
    if type(early) is type(late) and early > late:
        raise ValueError(f"{second}: {late} lies before {first} {early}; a run never goes back.")
