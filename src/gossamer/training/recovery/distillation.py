# SPDX-License-Identifier: Apache-2.0
"""Training that follows another model: the dense one, as it was before pruning.

A `DistillationObjective` adds up `Terms`: how far outputs, hidden states and vectors are from the
`Teacher`'s, and a `TaskLoss` if there is one. `check_apart` refuses a teacher that is the student.

Each term, what a student may be asked to match, is a mean that is 0 at a match. Legend: N rows
(samples or positions), V classes, B samples, D width.

The teacher is the dense model: frozen, in eval mode, remembering what it said. On a CPU it costs
more than a step of a 90 % sparse student, so vectors of samples that come again in the next epoch
are kept.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import kl_div, log_softmax, normalize

from gossamer.errors import InputError
from gossamer.nn.batch import Batch, first_tensor, named_tensor, rows_of

__all__ = ["DistillationObjective", "TaskLoss", "Teacher", "Terms", "check_apart"]


def check_apart(teacher: nn.Module, student: nn.Module) -> None:
    """Raise if the student has a Parameter of the teacher's, which will be frozen."""
    held = {id(parameter) for parameter in teacher.parameters()}
    for name, parameter in student.named_parameters():
        if id(parameter) in held:
            raise InputError(
                f"teacher: shares {name} with the model that is trained. Give it a copy:"
                " Teacher(copy.deepcopy(model))."
            )


class Teacher:
    """Holds the model itself, not a copy.

    Args:
        model: is put in eval mode, and its parameters take no gradients any more.
        memory_bytes: vectors of at most so many bytes are remembered.
    """

    def __init__(self, model: nn.Module, *, memory_bytes: int = 256 << 20) -> None:
        self.model = model.eval().requires_grad_(False)
        self._left = memory_bytes
        self._vectors: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def run(self, batch: Batch, names: Sequence[str] = ()) -> tuple[Any, list[torch.Tensor]]:
        """The model's output and those of the named modules."""
        with captured(self.model.eval(), names) as hidden:
            outputs = batch.run(self.model)
        return outputs, hidden

    @torch.no_grad()
    def vectors(self, batch: Batch) -> torch.Tensor:
        """One vector [B, D] per sample, from memory where all are known."""
        samples = batch.samples
        if samples is not None and all(sample in self._vectors for sample in samples):
            return torch.stack([self._vectors[sample] for sample in samples])
        vectors_BD = vectors_of(self.run(batch)[0], batch.keep)
        if samples is not None and len(samples) == len(vectors_BD):
            self._remember(samples, vectors_BD)
        return vectors_BD

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All vectors that are remembered.

        In another batch, with other padding, the same sample gives other last bits: a run that is
        resumed goes on with the vectors it had.
        """
        if not self._vectors:
            return {}
        return {
            "samples": torch.tensor(list(self._vectors)),
            "vectors": torch.stack(list(self._vectors.values())),
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Remember those of `state` instead."""
        self._left += sum(vector_D.nbytes for vector_D in self._vectors.values())
        self._vectors = {}
        if state:
            self._remember(state["samples"].tolist(), state["vectors"])

    def _remember(self, samples: Sequence[int], vectors_BD: torch.Tensor) -> None:
        for sample, vector_D in zip(samples, vectors_BD, strict=True):
            if sample not in self._vectors and vector_D.nbytes <= self._left:
                self._left -= vector_D.nbytes
                self._vectors[sample] = vector_D.clone()


def block_names(model: nn.Module) -> list[str]:
    """Children of the nn.ModuleList that holds most weights: the layers of a transformer."""
    lists = {
        name: sum(parameter.numel() for parameter in module.parameters())
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module)
    }
    if not lists:
        raise InputError(
            "distillation of hidden states: the model has no nn.ModuleList of blocks. Name the"
            " modules to compare with blocks=[...], or give hidden weight 0."
        )
    # The outermost of equals comes first.
    largest = max(lists, key=lists.__getitem__)
    prefix = f"{largest}." if largest else ""
    return [f"{prefix}{name}" for name, _ in model.get_submodule(largest).named_children()]


@contextmanager
def captured(model: nn.Module, names: Sequence[str]) -> Iterator[list[torch.Tensor]]:
    """The outputs of the named modules in the calls inside, in the order in which they come."""
    seen: list[torch.Tensor] = []

    def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
        found = first_tensor(outputs)
        if found is not None:
            seen.append(found)

    with ExitStack() as hooks:
        for name in names:
            try:
                module = model.get_submodule(name)
            except AttributeError as error:
                raise InputError(f"distillation: the model has no module {name!r}.") from error
            hooks.enter_context(module.register_forward_hook(hook))
        yield seen


def logits_of(outputs: Any) -> torch.Tensor:
    """Logits [..., V]: the output of that name, or a bare tensor."""
    return _tensor(outputs, "logits", "logits")


def vectors_of(outputs: Any, keep: torch.Tensor | None) -> torch.Tensor:
    """One vector [B, D] per sample: the mean of the last hidden state over what is no padding.

    A bare tensor [B, D] is taken as it is.
    """
    hidden = _tensor(outputs, "last_hidden_state", "embeddings")
    if hidden.ndim == 2:
        return hidden
    if hidden.ndim != 3:
        raise InputError(
            "distillation of embeddings: expected outputs [B, T, D] or [B, D], got"
            f" {list(hidden.shape)}."
        )
    if keep is None:
        return hidden.mean(dim=1)
    keep_BT1 = keep.unsqueeze(-1).to(hidden.dtype)
    return (hidden * keep_BT1).sum(1) / keep_BT1.sum(1).clamp(min=1)


def _tensor(outputs: Any, name: str, term: str) -> torch.Tensor:
    found = named_tensor(outputs, name)
    if found is None and not isinstance(outputs, Mapping):
        found = first_tensor(outputs)
    if found is None:
        raise InputError(
            f"distillation of {term}: the model's output ({type(outputs).__name__}) has no {name}."
            " Give this term weight 0 and another one its weight."
        )
    return found


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
