# SPDX-License-Identifier: Apache-2.0
"""Says per layer what runs it and why: the answer to "why is my model not faster?"."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from gossamer.nn.layer_kinds import form_of, kind_of
from gossamer.nn.layer_weights import density_of, shape_of
from gossamer.nn.prunable import LeftDense, left_dense, left_lines
from gossamer.nn.surgery import READ_BY_ATTENTION, attention_outputs
from gossamer.nn.surgery.left import LEFT
from gossamer.ops.engines.conv_net import ConvStep, PackedConvNet
from gossamer.ops.engines.encoder import PackedEncoder
from gossamer.running.choice import Choice
from gossamer.running.conv_net import NetForward
from gossamer.running.encoder import NativeEncoder
from gossamer.running.packed import MIN_SPARSITY

_LAYER_BY_LAYER, _AS_IT_WAS, _MASKED = "layer by layer", "as it was", "masked dense"
_TRAINED = "rounded when looked up"
_NOT_SPARSE = ("dense", _MASKED, _LAYER_BY_LAYER, _AS_IT_WAS, _TRAINED)
# Kernels that compute zeros too: of compact layers, and dense ones of lower precision.
_DENSE_KERNELS = ("compact/", "dense/")
_NOT_COMPILED = "not compiled: call gossamer.compile(model)"


@dataclass(frozen=True)
class Row:
    """One layer at one number of tokens (None where nothing was compiled).

    `spread` and `doubt` say how far the times can be trusted, as those of a `Choice`. `inside` says
    which kernels run the weights of one native call, and of a layer that is a part of such a call,
    which one runs it there.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    density: float
    pattern: str
    format: str
    tokens: int | None
    kernel: str
    dense_us: float | None
    sparse_us: float | None
    why: str
    spread: float | None = None
    doubt: str = ""
    inside: str = ""

    @property
    def reason(self) -> str:
        """Why, for people: with what runs inside a native call."""
        return f"{self.why}; {self.inside}" if self.inside else self.why

    @property
    def is_sparse(self) -> bool:
        """Whether a sparse kernel runs."""
        return not (self.kernel in _NOT_SPARSE or self.kernel.startswith(_DENSE_KERNELS))


class Explanation(list[Row]):
    """Rows of `explain`; prints as a table.

    Attributes:
        left_dense: weights that no row is about, by reason.
    """

    left_dense: Sequence[LeftDense] = ()

    def to_dicts(self) -> list[dict[str, Any]]:
        """Plain data, for --json."""
        return [asdict(row) for row in self]

    def __str__(self) -> str:
        head = ("layer", "shape", "density", "pattern", "kernel", "tokens", "dense us", "sparse us")
        lines = [(*head, "why")]
        lines += [
            (
                row.name,
                "x".join(map(str, row.shape)) or "-",
                f"{row.density:.3f}",
                row.pattern,
                row.kernel,
                _text(row.tokens, "d"),
                _text(row.dense_us, ".0f"),
                _text(row.sparse_us, ".0f"),
                f"{row.reason} [{row.doubt}]" if row.doubt else row.reason,
            )
            for row in self
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([*shown, *left_lines(self.left_dense)])


class Explained(Protocol):
    """Something that runs weights and is no module, such as a `DecoderEngine`."""

    def explained(self) -> Explanation:
        """One row per weight."""


def explain(model: nn.Module | Explained) -> Explanation:
    """One row per weight layer and measured token count: kernel, times, reason."""
    if not isinstance(model, nn.Module):
        return model.explained()
    rows = Explanation()
    outputs = attention_outputs(model)
    inside: dict[str, tuple[str, int]] = {}  # what runs a layer in one native call, from where on
    for path, module in model.named_modules():
        name = path or type(module).__name__
        forward = module.__dict__.get("forward")
        if isinstance(forward, NetForward) and forward.choice is not None:
            rows.append(_net_row(name, forward, forward.choice))
            inside |= _parts(path, name, forward.net, 0)
        if isinstance(module, NativeEncoder):
            # The layers as one; rows of single layers, which run below its tokens, follow.
            packed = module.packed
            facts = (name, module, (packed.num_layers, packed.features), packed.density)
            for choice in module.choices:
                row = _row(*facts, _LAYER_BY_LAYER, choice)
                rows.append(_with_kernels(row, packed) if choice.is_sparse else row)
            inside |= _parts(path, name, packed, module.min_tokens)
        elif kind_of(module):
            more, start = inside.get(path, ("", 0))
            for row in _layer_rows(name, module, id(module) in outputs):
                is_inside = row.tokens is None or row.tokens >= start
                rows.append(replace(row, inside=more) if is_inside else row)
        elif LEFT in module.__dict__:
            # Without a weight of its own: it stayed what it was, though its like do not.
            rows.append(_row(name, module, (), 1.0, _AS_IT_WAS, str(module.__dict__[LEFT])))
    rows.left_dense = left_dense(model, _weights_with_a_row)
    return rows


def _weights_with_a_row(module: nn.Module) -> int | None:
    form, weight = form_of(module), module._parameters.get("weight")
    if form == "packed":
        return torch.Size(shape_of(module)).numel()
    return None if form is None or weight is None else weight.numel()


def _net_row(name: str, forward: NetForward, choice: Choice) -> Row:
    """The body as one; rows of single layers, which run images of other sizes, follow."""
    convs = [step for step in forward.net.plan.steps if isinstance(step, ConvStep)]
    numel = sum(torch.Size(step.settings.weight_shape).numel() for step in convs)
    density = sum(step.matrix.nnz for step in convs) / max(numel, 1)
    shape = (len(convs), *forward.net.plan.values[0].size)
    row = _row(name, forward, shape, density, choice.kernel, choice)
    return _with_kernels(row, forward.net)


def _with_kernels(row: Row, engine: PackedEncoder | PackedConvNet) -> Row:
    """The row of a native call with the kernels that packed its weights, and those that cannot."""
    inside = f"inside: {', '.join(sorted(set(engine.kernels.values())))}"
    if engine.not_usable:
        inside += f", not usable there: {', '.join(sorted(engine.not_usable))}"
    return replace(row, inside=inside)


def _parts(
    path: str, name: str, engine: PackedEncoder | PackedConvNet, min_tokens: int
) -> dict[str, tuple[str, int]]:
    """What to say of each layer that a native call runs, from how many tokens on, by its path."""
    start = f"{path}." if path else ""
    return {
        start + layer: (f"inside {name}: {kernel}", min_tokens)
        for layer, kernel in engine.kernels.items()
    }


def _layer_rows(name: str, module: nn.Module, is_read: bool) -> Iterator[Row]:
    """`is_read`: whether an attention reads the weight of the layer, which is never called."""
    # What it runs as where no sparse kernel does.
    compact = f"compact/{getattr(module, 'mode', '')}"
    forms = {"masked": _MASKED, "compact": compact, "trained": _TRAINED}
    form, density = forms.get(form_of(module) or "", "dense"), density_of(module)
    why = _NOT_COMPILED
    if form == "dense" and density > 1 - MIN_SPARSITY:
        why = "no mask and too few zeros to gain"
    elif is_read:
        why = f"stays dense when compiled, too: {READ_BY_ATTENTION}"
    choices: Sequence[Choice | str] | None = getattr(module, "choices", None)
    pattern = str(getattr(module, "pattern", None) or "-")
    stored = getattr(module, "format", "-")
    for choice in [why] if choices is None else choices:
        yield _row(name, module, shape_of(module), density, form, choice, pattern, stored)


def _row(
    name: str,
    what: object,
    shape: tuple[int, ...],
    density: float,
    other: str,
    choice: Choice | str,
    pattern: str = "-",
    format: str = "-",
) -> Row:
    """`choice` is what was measured, or why nothing was; `other` runs where no kernel does."""
    # Whatever it takes the place of, users know it by one name.
    kind = (NativeEncoder if isinstance(what, NativeEncoder) else type(what)).__name__
    facts = (name, kind, shape, density, pattern, format)
    if isinstance(choice, str):
        return Row(*facts, None, other, None, None, choice)
    return Row(*facts, **{**vars(choice), "kernel": choice.kernel if choice.is_sparse else other})


def _text(value: float | int | None, form: str) -> str:
    return "-" if value is None else format(value, form)
