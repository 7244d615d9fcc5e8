# SPDX-License-Identifier: Apache-2.0
"""Says per layer what runs it and why: the answer to "why is my model not faster?"."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from gossamer.nn import attention_outputs
from gossamer.nn.layer_kinds import density_of, form_of, shape_of
from gossamer.nn.left_dense import LeftDense, left_dense, left_lines
from gossamer.nn.surgery.carried import LEFT
from gossamer.nn.surgery.fastpath import READ_BY_ATTENTION
from gossamer.ops.engines.conv_net import ConvStep
from gossamer.running.conv_net.network import NetForward
from gossamer.running.encoder import NativeEncoder
from gossamer.running.layers.packed import MIN_SPARSITY, Choice

_LAYER_BY_LAYER, _AS_IT_WAS, _MASKED = "layer by layer", "as it was", "masked dense"
_NOT_SPARSE = ("dense", _MASKED, _LAYER_BY_LAYER, _AS_IT_WAS)
_NOT_COMPILED = "not compiled: call gossamer.compile(model)"


@dataclass(frozen=True)
class Row:
    """One layer at one number of tokens (None where nothing was compiled).

    `spread` and `doubt` say how far the times can be trusted, as those of a `Choice`.
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

    @property
    def is_sparse(self) -> bool:
        """Whether a sparse kernel runs."""
        return not (self.kernel in _NOT_SPARSE or self.kernel.startswith("compact/"))


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
                _why(row),
            )
            for row in self
        ]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        shown = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([*shown, *left_lines(self.left_dense)])


def explain(model: nn.Module) -> Explanation:
    """One row per weight layer and measured token count: kernel, times, reason."""
    rows = Explanation()
    outputs = attention_outputs(model)
    for name, module in model.named_modules():
        forward = module.__dict__.get("forward")
        if isinstance(forward, NetForward) and forward.choice is not None:
            rows.append(_net_row(name, module, forward, forward.choice))
        if isinstance(module, NativeEncoder):
            rows.extend(_encoder_rows(name, module))
        elif form_of(module) is not None:
            rows.extend(_rows(name or type(module).__name__, module, id(module) in outputs))
        elif LEFT in module.__dict__:
            rows.append(_left_row(name or type(module).__name__, module))
    rows.left_dense = left_dense(model, _weights_with_a_row)
    return rows


def _left_row(name: str, module: nn.Module) -> Row:
    """A module without a weight of its own that stayed what it was, though its like do not."""
    return Row(
        name=name,
        kind=type(module).__name__,
        shape=(),
        density=1.0,
        pattern="-",
        format="-",
        tokens=None,
        kernel=_AS_IT_WAS,
        dense_us=None,
        sparse_us=None,
        why=str(module.__dict__[LEFT]),
    )


def _weights_with_a_row(module: nn.Module) -> int | None:
    form, weight = form_of(module), module._parameters.get("weight")
    if form == "packed":
        return torch.Size(shape_of(module)).numel()
    return None if form is None or weight is None else weight.numel()


def _net_row(name: str, module: nn.Module, forward: NetForward, choice: Choice) -> Row:
    """The body as one; rows of single layers, which run images of other sizes, follow."""
    convs = [step for step in forward.net.plan.steps if isinstance(step, ConvStep)]
    numel = sum(torch.Size(step.settings.weight_shape).numel() for step in convs)
    return Row(
        name=name or type(module).__name__,
        kind=type(forward).__name__,
        shape=(len(convs), *forward.net.plan.values[0].size),
        density=sum(step.matrix.nnz for step in convs) / max(numel, 1),
        pattern="-",
        format="-",
        tokens=choice.tokens,
        kernel=choice.kernel,
        dense_us=choice.dense_us,
        sparse_us=choice.sparse_us,
        why=choice.why,
        spread=choice.spread,
        doubt=choice.doubt,
    )


def _encoder_rows(name: str, module: NativeEncoder) -> list[Row]:
    """The layers as one; rows of single layers, which run below its tokens, follow."""
    packed = module.packed
    return [
        Row(
            name=name or type(module).__name__,
            kind=type(module).__name__,
            shape=(packed.num_layers, packed.features),
            density=packed.density,
            pattern="-",
            format="-",
            tokens=choice.tokens,
            kernel=choice.kernel if choice.is_sparse else _LAYER_BY_LAYER,
            dense_us=choice.dense_us,
            sparse_us=choice.sparse_us,
            why=choice.why,
            spread=choice.spread,
            doubt=choice.doubt,
        )
        for choice in module.choices
    ]


def _rows(name: str, module: nn.Module, is_read: bool) -> list[Row]:
    """`is_read`: whether an attention reads the weight of the layer, which is never called."""
    form = _form(module)
    choices: tuple[Choice, ...] | None = getattr(module, "choices", None)
    if choices is not None:
        return [
            replace(
                _row(
                    name,
                    module,
                    c.tokens,
                    c.kernel if c.is_sparse else form,
                    c.dense_us,
                    c.sparse_us,
                    c.why,
                ),
                spread=c.spread,
                doubt=c.doubt,
            )
            for c in choices
        ]
    if form == "dense" and density_of(module) > 1 - MIN_SPARSITY:
        why = "no mask and too few zeros to gain"
    else:
        why = f"stays dense when compiled, too: {READ_BY_ATTENTION}" if is_read else _NOT_COMPILED
    return [_row(name, module, None, form, None, None, why)]


def _form(module: nn.Module) -> str:
    """What a layer runs as where no sparse kernel does."""
    form = form_of(module)
    return {"masked": _MASKED, "compact": f"compact/{getattr(module, 'mode', '')}"}.get(
        form or "", "dense"
    )


def _row(
    name: str,
    module: nn.Module,
    tokens: int | None,
    kernel: str,
    dense_us: float | None,
    sparse_us: float | None,
    why: str,
) -> Row:
    return Row(
        name=name,
        kind=type(module).__name__,
        shape=shape_of(module),
        density=density_of(module),
        pattern=str(getattr(module, "pattern", None) or "-"),
        format=getattr(module, "format", "-"),
        tokens=tokens,
        kernel=kernel,
        dense_us=dense_us,
        sparse_us=sparse_us,
        why=why,
    )


def _why(row: Row) -> str:
    return f"{row.why} [{row.doubt}]" if row.doubt else row.why


def _text(value: float | int | None, form: str) -> str:
    return "-" if value is None else format(value, form)
