# SPDX-License-Identifier: Apache-2.0
"""The objective of recovery: match the teacher, and to a chosen degree the labels.

Each term, what a student may be asked to match, is a mean that is 0 at a match. Legend: N rows
(samples or positions), V classes, B samples, D width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import kl_div, log_softmax, normalize

from gossamer.errors import InputError
from gossamer.nn.batch import Batch, rows_of
from gossamer.training.recovery.distillation.teacher import (
    Teacher,
    block_names,
    captured,
    logits_of,
    vectors_of,
)

TaskLoss = Callable[[Any, Batch], torch.Tensor]


@dataclass(frozen=True)
class Terms:
    """How much each thing to match weighs; 0 leaves it out.

    Attributes:
        logits: KL divergence of softened distributions.
        embeddings: distance of the vectors of samples.
        similarity: differences of the cosines of all pairs in a batch.
        hidden: hidden states of every block; the teacher's cannot be remembered.
        temperature: of the logits.
        distance: of vectors: "cosine", or "squares" where their length matters.
    """

    logits: float = 0.0
    embeddings: float = 0.0
    similarity: float = 0.0
    hidden: float = 0.0
    temperature: float = 2.0
    distance: Literal["cosine", "squares"] = "cosine"

    @property
    def total(self) -> float:
        """Of all weights."""
        return self.logits + self.embeddings + self.similarity + self.hidden


class DistillationObjective:
    """`loss(model, batch)`: (1 - hardness) times the terms, plus hardness times the task's loss.

    Args:
        teacher: what to match.
        terms: and how.
        task: loss of (outputs, batch) against labels.
        hardness: 0 looks at the teacher only, 1 at the labels only.
        blocks: modules whose outputs are hidden states, in both models; None: the blocks found.
    """

    def __init__(
        self,
        teacher: Teacher,
        terms: Terms,
        *,
        task: TaskLoss | None = None,
        hardness: float = 0.0,
        blocks: Sequence[str] | None = None,
    ) -> None:
        if not 0 <= hardness <= 1:
            raise InputError(f"distillation: hardness must be in [0, 1], got {hardness}.")
        if hardness and task is None:
            raise InputError(
                f"distillation: hardness {hardness} mixes in a task loss, but there is none. Give"
                " task=..., or hardness 0."
            )
        for name, value in asdict(terms).items():
            if not isinstance(value, str) and value < 0:
                raise InputError(f"distillation: {name} must not be negative, got {value}.")
        if hardness < 1 and not terms.total:
            raise InputError(
                "distillation: every term has weight 0. Give one of logits, embeddings, similarity"
                " and hidden a weight."
            )
        self.teacher = teacher
        self.terms = terms
        self._task = task
        self._hardness = hardness
        self._blocks: Sequence[str] = ()
        if terms.hidden:
            self._blocks = block_names(teacher.model) if blocks is None else blocks

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, Mapping[str, float]]:
        """The loss, and its parts before they are weighted."""
        with captured(model, self._blocks) as hidden:
            outputs = batch.run(model)
        parts = self._soft(outputs, hidden, batch) if self._hardness < 1 else {}
        weights = {name: (1 - self._hardness) * getattr(self.terms, name) for name in parts}
        if self._task is not None and self._hardness:
            parts["task"], weights["task"] = self._task(outputs, batch), self._hardness
        loss = torch.stack([weights[name] * part for name, part in parts.items()]).sum()
        return loss, {name: float(part.detach()) for name, part in parts.items()}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What the teacher said, for checkpoints."""
        return self.teacher.state_dict()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on with what it said."""
        self.teacher.load_state_dict(state)

    def _soft(
        self, outputs: Any, hidden: list[torch.Tensor], batch: Batch
    ) -> dict[str, torch.Tensor]:
        terms, keep, parts = self.terms, batch.keep, {}
        wanted: Any = None
        wanted_hidden: list[torch.Tensor] = []
        if terms.hidden or terms.logits:
            wanted, wanted_hidden = self.teacher.run(batch, self._blocks)
        if terms.logits:
            mine, theirs = (rows_of(logits_of(one), keep) for one in (outputs, wanted))
            parts["logits"] = logits_term(mine, theirs, terms.temperature)
        if terms.embeddings or terms.similarity:
            mine = vectors_of(outputs, keep)
            theirs = self.teacher.vectors(batch) if wanted is None else vectors_of(wanted, keep)
            if terms.embeddings:
                distance = cosine_term if terms.distance == "cosine" else squares_term
                parts["embeddings"] = distance(mine, theirs)
            if terms.similarity:
                parts["similarity"] = similarity_term(mine, theirs)
        if terms.hidden:
            rows = ([rows_of(state, keep) for state in one] for one in (hidden, wanted_hidden))
            parts["hidden"] = hidden_term(*rows)
        return parts


def logits_term(
    student_NV: torch.Tensor, teacher_NV: torch.Tensor, temperature: float
) -> torch.Tensor:
    """KL divergence from the teacher's softened distribution, times the temperature squared.

    The factor keeps the size of gradients the same at every temperature (Hinton et al. 2015).
    """
    if not temperature > 0:
        raise InputError(f"distillation: temperature must be above 0, got {temperature}.")
    student, teacher = (
        log_softmax(part.float() / temperature, dim=-1) for part in (student_NV, teacher_NV)
    )
    return kl_div(student, teacher, reduction="batchmean", log_target=True) * temperature**2


def cosine_term(student_BD: torch.Tensor, teacher_BD: torch.Tensor) -> torch.Tensor:
    """1 - cosine."""
    student, teacher = (normalize(part.float(), dim=1) for part in (student_BD, teacher_BD))
    return 1 - (student * teacher).sum(dim=1).mean()


def squares_term(student_ND: torch.Tensor, teacher_ND: torch.Tensor) -> torch.Tensor:
    """Squared distance as a fraction of the teacher's mean square."""
    scale = teacher_ND.float().square().mean().clamp(min=1e-12)
    return (student_ND.float() - teacher_ND.float()).square().mean() / scale


def similarity_term(student_BD: torch.Tensor, teacher_BD: torch.Tensor) -> torch.Tensor:
    """Mean squared difference of the cosines of all pairs of different samples in the batch."""
    size = len(student_BD)
    if size < 2:
        return student_BD.sum() * 0.0
    student, teacher = (normalize(part.float(), dim=1) for part in (student_BD, teacher_BD))
    return (student @ student.T - teacher @ teacher.T).square().sum() / (size * (size - 1))


def hidden_term(student: Sequence[torch.Tensor], teacher: Sequence[torch.Tensor]) -> torch.Tensor:
    """`squares_term` of hidden states [N, D], averaged over the layers."""
    if len(student) != len(teacher) or not student:
        raise InputError(
            f"distillation of hidden states: the student has {len(student)} layers, the teacher"
            f" {len(teacher)}. Both need the same blocks, at least one."
        )
    parts = []
    for mine, wanted in zip(student, teacher, strict=True):
        if mine.shape != wanted.shape:
            raise InputError(
                f"distillation of hidden states: the student has {list(mine.shape)} where the"
                f" teacher has {list(wanted.shape)}. Give hidden weight 0 for slim models."
            )
        parts.append(squares_term(mine, wanted))
    return torch.stack(parts).mean()
