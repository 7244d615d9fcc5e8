# SPDX-License-Identifier: Apache-2.0
"""What a search works with: a model, data in three parts, a measure of quality, an input to time.

Candidates are fitted to the first part, chosen by the second, and the third is seen once, at the
end: the figure that is reported is from data nothing was chosen by.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.nn.batch import Batch
from gossamer.nn.families import answers, family_of
from gossamer.nn.layers.tables import table_of
from gossamer.nn.moe import stored_experts
from gossamer.nn.surgery.channels import read_channels
from gossamer.nn.surgery.mixtures import feed_forwards, mixtures_of
from gossamer.ops.timing import fair_clock, race, stopwatch
from gossamer.pruning.calibration.flow import evaluating
from gossamer.pruning.gradients import Loss
from gossamer.pruning.gradients.losses import output_of
from gossamer.pruning.targets import find_targets
from gossamer.runs.calibration import Quality
from gossamer.runs.stages.recover_data import RecoverySamples

# Parts of the data to choose by and to report, where the user does not give files for them.
CHOOSE_PART, REPORT_PART = 0.15, 0.15
MIN_SAMPLES = 20
_SEED = 0
# Of the weights, in layers that are left dense.
_SMALL_PART = 0.01
Measure = Callable[[nn.Module, Any], float]
Part = TypeVar("Part")


@dataclass(frozen=True)
class Workload:
    """One search.

    Attributes:
        model: the dense model, never changed.
        batches: calibration data.
        samples: what recovery trains on.
        loss: of a batch with labels; None if there are none.
        terms: of recovery: what is matched of the dense model, and the part of `loss`.
        choosing: the quality that candidates are compared by.
        reporting: the quality that is told in the end.
        timed: the call that is timed.
        timed_text: what that is, for people.
        tokens: activation rows of that call.
        digest: of everything candidates are fitted to.
        example: an input for convolutions; None if there are none.
        kind: of model: "encoder", "decoder", "clicks" (its tables are most of it) or "other".
        texts: what engines of other makers read, by part.
        images: float32 [N, C, H, W] that they calibrate by; with neither they are not asked.
    """

    model: nn.Module
    batches: Callable[[], list[Batch]]
    samples: Callable[[], RecoverySamples]
    loss: Loss | None
    terms: Mapping[str, float]
    choosing: Quality
    reporting: Quality
    timed: Batch
    timed_text: str
    tokens: int
    digest: str
    example: torch.Tensor | None = None
    kind: str = "other"
    tokenizer: Any = None
    texts: Mapping[str, Any] = field(default_factory=dict)
    images: torch.Tensor | None = None

    @property
    def aim(self) -> dict[str, Any]:
        """Settings of a recovery: its terms, and tables of embeddings held as they are."""
        has_table = any(isinstance(module, nn.Embedding) for module in self.model.modules())
        return {**self.terms, **({"freeze": "Embedding"} if has_table else {})}

    @property
    def has_trained_tables(self) -> bool:
        """Whether tables of the model are in few bits already."""
        return any(table_of(module) is not None for module in self.model.modules())

    @property
    def has_experts(self) -> bool:
        """Whether there are mixtures of experts."""
        return bool(mixtures_of(self.model)) or any(stored_experts(self.model))

    @property
    def can_lose_channels(self) -> bool:
        """Whether there are BatchNorms, of layers that are understood, to choose channels by."""
        if self.images is None or self.example is None:
            return False
        try:
            layers = read_channels(self.model, self.example).layers.values()
        except TargetError:
            return False
        return any(layer.role == "norm" for layer in layers)

    def can_get_experts(self, count: int) -> bool:
        """Whether feed-forward parts can be dealt out to so many experts, some of them shared."""
        try:
            parts = feed_forwards(self.model)
        except TargetError:
            return False
        facts = answers("mixtures")[family_of(self.model, "mixtures") or ""]
        return bool(parts) and parts[0].width % count == 0 and any(f.shared for f in facts)

    @property
    def kept_dense(self) -> list[str]:
        """Layers with so few weights that zeros in them cost quality and pay nothing.

        The smallest ones, as long as they hold 1 % of the weights between them: the first and the
        last layer of a network for images, the head of a small classifier.
        """
        layers = sorted(find_targets(self.model), key=lambda target: target.weight.numel())
        left = _SMALL_PART * sum(target.weight.numel() for target in layers)
        names = []
        for target in layers[:-1]:
            left -= target.weight.numel()
            if left < 0:
                break
            names.append(target.name)
        return names

    def milliseconds(self, model: nn.Module, seconds: float) -> float:
        """The best time of the timed call, within so many seconds of trying."""
        with torch.inference_mode():
            watch = stopwatch(self.timed.call(model), fair_clock())
            return race([watch], budget_seconds=seconds)[0] / 1e3


def split_data(
    count: int,
    take: Callable[[Sequence[int]], Part],
    given: tuple[Part | None, Part | None],
    where: str,
    least: int = MIN_SAMPLES,
) -> tuple[Part, Part, Part]:
    """The parts to fit to, to choose by and to report; those that are not given are set aside.

    Args:
        count: of all samples.
        take: the part of the data with these samples.
        given: what the user gave to choose by, and for the final figure.
        where: the data, for messages.
        least: samples that are enough.
    """
    if count < least:
        raise InputError(
            f"{where}: {count} samples are too few to search with; at least {least} are needed,"
            " some to fit, some to choose by, some to report."
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(_SEED)).tolist()
    parts = []
    for part, share in zip(given, (CHOOSE_PART, REPORT_PART), strict=True):
        held = max(1, round(share * count)) if part is None else 0
        parts.append(take(sorted(order[:held])) if part is None else part)
        order = order[held:]
    return take(sorted(order)), parts[0], parts[1]


def user_quality(metric: Measure, data: Any, where: str) -> Quality:
    """A user's function as a quality; its attributes `name`, `whole` and `lower_is_better` count.

    Without `whole`, a loss is a part of the dense model's own number.
    """
    return Quality(
        str(getattr(metric, "name", getattr(metric, "__name__", "metric"))),
        bool(getattr(metric, "lower_is_better", False)),
        lambda m: float(metric(m, data)),
        where,
        getattr(metric, "whole", None),
    )


def accuracy_quality(batches: Callable[[], Iterable[Batch]], where: str) -> Quality:
    """The percentage of labels that a classifier gets right."""

    def measure(model: nn.Module) -> float:
        right = count = 0
        with evaluating(model), torch.no_grad():
            for batch in batches():
                labels: Any = batch.labels
                hits = output_of(batch.run(model)).argmax(dim=-1) == labels
                right, count = right + int(hits.sum()), count + len(hits)
        return 100 * right / count

    return Quality("accuracy (%)", False, measure, where, 100.0)


def typical_ids(rows: Sequence[torch.Tensor], vocabulary: int, tokens: int) -> torch.Tensor:
    """[1, tokens]: samples of the data one after the other, so that times are those of real text.

    Token pruning, say, does not drop what it would drop of noise.
    """
    stream = torch.cat([*rows[:tokens], torch.zeros(0, dtype=torch.int64)])
    if len(stream) < tokens:
        generator = torch.Generator().manual_seed(_SEED)
        more = torch.randint(0, vocabulary, (tokens - len(stream),), generator=generator)
        stream = torch.cat([stream, more])
    return stream[:tokens].view(1, tokens)
