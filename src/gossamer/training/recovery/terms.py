# SPDX-License-Identifier: Apache-2.0
"""What a student may be asked to match in its teacher, each as a mean that is 0 at a match.

Legend: N rows (samples or positions), V classes, B samples, D width.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import kl_div, log_softmax, normalize

from gossamer.errors import InputError
from gossamer.nn.batch import first_tensor, named_tensor


def logits_term(
    student_NV: torch.Tensor, teacher_NV: torch.Tensor, temperature: float
) -> torch.Tensor:
    """KL divergence from the teacher's softened distribution, times the temperature squared.

    The factor keeps the size of gradients the same at every temperature (Hinton et al. 2015).
    """
    if not temperature > 0:
        raise InputError(f"distillation: temperature must be above 0, got {temperature}.")
    student = log_softmax(student_NV.float() / temperature, dim=-1)
    teacher = log_softmax(teacher_NV.float() / temperature, dim=-1)
    divergence = kl_div(student, teacher, reduction="batchmean", log_target=True)
    return divergence * temperature**2


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
    difference_BB = student @ student.T - teacher @ teacher.T
    return difference_BB.square().sum() / (size * (size - 1))


def hidden_term(student: Sequence[torch.Tensor], teacher: Sequence[torch.Tensor]) -> torch.Tensor:
    """`squares_term` of hidden states [N, D], averaged over the layers."""
    if len(student) != len(teacher) or not student:
        raise InputError(
            f"distillation of hidden states: the student has {len(student)} layers, the teacher"
            f" {len(teacher)}. Both need the same blocks, at least one."
        )
    for mine, wanted in zip(student, teacher, strict=True):
        if mine.shape != wanted.shape:
            raise InputError(
                f"distillation of hidden states: the student has {list(mine.shape)} where the"
                f" teacher has {list(wanted.shape)}. Give hidden weight 0 for slim models."
            )
    parts = [squares_term(mine, wanted) for mine, wanted in zip(student, teacher, strict=True)]
    return torch.stack(parts).mean()


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
    pooled_BD: torch.Tensor = (hidden * keep_BT1).sum(1) / keep_BT1.sum(1).clamp(min=1)
    return pooled_BD


def _tensor(outputs: Any, name: str, term: str) -> torch.Tensor:
    found = named_tensor(outputs, name)
    if found is None and not isinstance(outputs, Mapping):
        found = first_tensor(outputs)
    if found is None:
        kind = type(outputs).__name__
        raise InputError(
            f"distillation of {term}: the model's output ({kind}) has no {name}. Give this term"
            " weight 0 and another one its weight."
        )
    return found
