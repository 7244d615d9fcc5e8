# SPDX-License-Identifier: Apache-2.0
"""What a model and its optimizer really hold in memory, beside what the formulas say.

Storages are walked, each is counted once, whoever shares it.
"""

import math
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.layers.parts import DenseHome, SparseLayer
from gossamer.training.memory.formulas import (
    KINDS,
    VARIANTS,
    Kind,
    StateCost,
    dense_cost,
    moment_bytes,
    state_cost,
)
from gossamer.training.optim import SmallStateOptimizer

Accounting = Literal["storages", "samo"]

_MASTER_BYTES = {"split": 2, "split8": 1, "fp32": 4, "wide": 4}
_STATE_KINDS: dict[str, Kind] = {
    "gradient": "gradients",
    "rounded": "masters",
    "master": "masters",
    "master_low": "masters",
    "momentum_buffer": "moments",
    "exp_avg": "moments",
    "exp_avg_sq": "moments",
    "max_exp_avg_sq": "moments",
}


@dataclass(frozen=True)
class MemoryPart:
    """Bytes of some of the parameters.

    Attributes:
        num_parameters: entries of their dense weights.
        num_kept: entries that are trained.
        measured: bytes of storages, by kind.
        predicted: bytes of the formulas, by kind; None if the optimizer is not known.
    """

    num_parameters: int
    num_kept: int
    measured: dict[Kind, int]
    predicted: dict[Kind, float] | None

    @property
    def density(self) -> float:
        """Kept fraction."""
        return self.num_kept / self.num_parameters if self.num_parameters else 1.0

    @property
    def bytes_per_parameter(self) -> float:
        """Measured bytes per entry of the dense weights."""
        return sum(self.measured.values()) / max(self.num_parameters, 1)

    @property
    def predicted_per_parameter(self) -> float | None:
        """Bytes per entry that the formulas give."""
        if self.predicted is None:
            return None
        return sum(self.predicted.values()) / max(self.num_parameters, 1)


@dataclass(frozen=True)
class MemoryUse:
    """Training state by kind: of the pruned weights, and of everything else.

    Attributes:
        pruned: weights of compact and masked layers.
        rest: embeddings, norms, biases, heads, buffers.
        accounting: "storages", or "samo" for what SAMO as published holds for the same masks.
    """

    pruned: MemoryPart
    rest: MemoryPart
    accounting: Accounting = "storages"

    @property
    def total_bytes(self) -> int:
        """Everything."""
        return sum(self.pruned.measured.values()) + sum(self.rest.measured.values())

    def __str__(self) -> str:
        heading = f"bytes per parameter, accounting {self.accounting!r}"
        lines = [f"{heading:44} {'measured':>9} {'formula':>9}"]
        for name, part in (("pruned", self.pruned), ("rest", self.rest)):
            lines.append(
                f"{name}: {part.num_parameters:,} parameters, {part.num_kept:,} trained"
                f" (f = {part.density:.4f})"
            )
            count = max(part.num_parameters, 1)
            for kind in KINDS:
                predicted = None if part.predicted is None else part.predicted.get(kind, 0) / count
                if part.measured.get(kind) or predicted:
                    lines.append(_line(f"  {kind}", part.measured.get(kind, 0) / count, predicted))
            lines.append(
                _line("  together", part.bytes_per_parameter, part.predicted_per_parameter)
            )
        lines.append(f"total {self.total_bytes / 2**20:,.1f} MiB")
        return "\n".join(lines)


def _line(name: str, measured: float, predicted: float | None) -> str:
    formula = "" if predicted is None else f"{predicted:9.4f}"
    return f"{name:44} {measured:9.4f} {formula}"


def measure(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    accounting: Accounting = "storages",
) -> MemoryUse:
    """Walk everything that outlives a step, gradients included; call it before `zero_grad`.

    Args:
        model: with compact, masked or ordinary layers.
        optimizer: of the model.
        accounting: "samo" shows the pruned weights as SAMO holds them (24 f + 2 bytes with Adam),
            counted from the masks of the model's compact layers.
    """
    if accounting not in get_args(Accounting):
        raise InputError(
            f"accounting: must be one of {', '.join(get_args(Accounting))}; got {accounting!r}."
        )
    state = {} if optimizer is None else dict(optimizer.state)
    layers = {layer.trained(): layer for _, layer in sparse_layers(model)}
    books: dict[bool, Counter[Kind]] = {True: Counter(), False: Counter()}
    seen = set()
    for tensor, kind, is_pruned in _held(model, state, layers):
        if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
            continue
        storage = tensor.untyped_storage()
        key = (str(tensor.device), storage.data_ptr())
        if storage.nbytes() and key not in seen:
            seen.add(key)
            books[is_pruned][kind] += storage.nbytes()
    weights = [(param, layers.get(param)) for param in model.parameters()]
    pruned, rest = (
        _part(book, optimizer, [pair for pair in weights if (pair[1] is not None) is is_pruned])
        for is_pruned, book in books.items()
    )
    if accounting == "samo":
        # The same masks in SAMO's tensors: each is sized by the entries it would have.
        per_parameter = VARIANTS["samo"].by_kind(pruned.density)
        predicted = {kind: value * pruned.num_parameters for kind, value in per_parameter.items()}
        held = {kind: round(value) for kind, value in predicted.items() if value}
        pruned = replace(pruned, measured=held, predicted=predicted)
    return MemoryUse(pruned, rest, accounting)


def _held(
    model: nn.Module, state: dict[Any, dict[str, Any]], layers: Container[nn.Parameter]
) -> Iterator[tuple[Any, Kind, bool]]:
    """Everything that may be a tensor, its kind, and whether it belongs to a pruned weight."""
    for param in model.parameters():
        pruned = param in layers
        yield param, "weights", pruned
        grad = param.grad
        if grad is not None and grad.layout is torch.sparse_coo:
            # Of a table: rows that were looked up, and their numbers.
            yield grad._indices(), "gradients", pruned
            grad = grad._values()
        yield grad, "gradients", pruned
        for key, value in state.get(param, {}).items():
            yield value, _STATE_KINDS.get(key.removesuffix("_exponents"), "other"), pruned
    sparse = {layer for _, layer in sparse_layers(model)}
    for module in model.modules():
        pruned = module in sparse
        for name, buffer in module._buffers.items():
            is_mask = pruned and name in ("mask_bits", "_mask")
            yield buffer, "positions" if is_mask else "other", pruned
        home, dense = vars(module).get("_home"), "dense copies"
        if isinstance(home, DenseHome) and home.has_index:
            yield home.positions, "positions", pruned
            # In mode "samo" the dense weight is no copy: it is the weight.
            dense = "weights"
        for name, value in vars(module).items():
            yield value, cast("Kind", dense) if name == "_dense" else "other", pruned


def _part(
    measured: dict[Kind, int],
    optimizer: torch.optim.Optimizer | None,
    weights: Sequence[tuple[nn.Parameter, SparseLayer | None]],
) -> MemoryPart:
    numel = kept = 0
    predicted: dict[Kind, float] | None = dict.fromkeys(KINDS, 0.0)
    for param, layer in weights:
        entries = trained = param.numel()
        if layer is not None:
            entries, trained = math.prod(layer.matrix_shape), layer.nnz
        numel, kept = numel + entries, kept + trained
        cost = _predicted_cost(param, layer, optimizer)
        if cost is None or predicted is None:
            predicted = None
        elif entries:
            for kind, value in cost.by_kind(trained / entries).items():
                predicted[kind] += value * entries
    return MemoryPart(numel, kept, measured, predicted)


def _predicted_cost(
    param: nn.Parameter, layer: SparseLayer | None, optimizer: torch.optim.Optimizer | None
) -> StateCost | None:
    """The cost of a parameter with its gradient; None for an optimizer without a formula."""
    groups = [] if optimizer is None else optimizer.param_groups
    group = next((g for g in groups if any(held is param for held in g["params"])), None)
    size, master, moments = param.element_size(), 0, 0.0
    if param.grad is None or group is None:
        pass
    elif isinstance(optimizer, SmallStateOptimizer):
        if param.dtype not in (torch.float32, torch.float64):
            master = _MASTER_BYTES[group["master"]]
        count, eight_bit = len(optimizer.moments_of(group)), group["moments"] == "8bit"
        factor = 2 if param.dtype is torch.float64 and not eight_bit else 1
        moments = moment_bytes(count, eight_bit=eight_bit) * factor
    elif type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        moments = (3 if group["amsgrad"] else 2) * size
    elif type(optimizer) is torch.optim.SGD:
        moments = size if group["momentum"] else 0
    else:
        return None
    cost, mode = dense_cost(size, master, moments), getattr(layer, "mode", None)
    is_wide = master and group is not None and group["master"] == "wide"
    home = DenseHome.of(param)
    if home is not None and home.has_index:
        cost = StateCost.samo(size, master, moments, is_wide=bool(is_wide))
    elif mode is not None:  # a compact layer
        dense, is_home = size if mode == "resident" else 0, DenseHome.of(param) is not None
        cost = state_cost(size, master, moments, dense_bytes=dense, values_in_dense=is_home)
    kept, always = dict(cost.per_kept), dict(cost.per_weight)
    if is_wide and mode is None:
        always["gradients"] += 4
    elif is_wide and (home is None or not home.has_index):
        kept["gradients"] += 4
        kept["masters"] += size if home is not None else 0
    if layer is not None and mode is None:
        always["positions"] = 1 + 1 / 8
    if param.grad is None:
        kept["gradients"] = always["gradients"] = 0
    return StateCost(kept, always)
