# SPDX-License-Identifier: Apache-2.0
"""The dense model a pruned one learns from: frozen, in eval mode, remembering what it said.

On a CPU the dense teacher costs more than a step of a 90 % sparse student, so vectors of samples
that come again in the next epoch are kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.batch import Batch, first_tensor, named_tensor


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
