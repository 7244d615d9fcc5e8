# SPDX-License-Identifier: Apache-2.0
"""The attention of a model that exists is given a pattern."""

from collections.abc import Callable
from typing import Any

from torch import nn

from gossamer.errors import InputError
from gossamer.nn.attention.marks import calls_interface, mark, num_heads, takes_mark
from gossamer.nn.attention.of_transformers import connect
from gossamer.nn.attention.sparse import SparseAttention
from gossamer.nn.families import family_of
from gossamer.nn.surgery import disable_fast_paths, replace_module, unchanged_on_error
from gossamer.patterns.attention import parse_attention

_WHERE = "replace_attention"


def replace_attention(
    model: nn.Module,
    pattern: str | list[str],
    *,
    layers: Callable[[str], bool] | None = None,
    **settings: Any,
) -> list[str]:
    """Let attention layers attend to a pattern only, in place; the names of those layers.

    Parameters stay the same objects, so optimizers and files go on with them. Layers are
    `torch.nn.MultiheadAttention`, those of this package, blocks of `zoo.GPT`, and all of
    transformers that call its attention interface: of the table of families all but MPNet and
    `zoo.TinyEncoder`. A layer that is causal stays so. A model of transformers keeps a window that
    it has of its own.

    Args:
        model: is changed.
        pattern: such as 'window:512+global:64'.
        layers: says by its name whether a layer is changed; None = all are.
        settings: for `SparseAttention`, where a MultiheadAttention is replaced.
    """
    parsed = parse_attention(pattern)
    text = str(parsed)
    wanted = layers or (lambda name: True)
    named = dict(model.named_modules())
    dense = {n: m for n, m in named.items() if type(m) is nn.MultiheadAttention and wanted(n)}
    sparse = {n: m for n, m in named.items() if isinstance(m, SparseAttention) and wanted(n)}
    marked = {n: m for n, m in named.items() if takes_mark(m) and wanted(n)}
    others = {**sparse, **marked}
    if others and settings:
        name, module = next(iter(others.items()))
        raise InputError(
            f"{_WHERE}: {', '.join(settings)} cannot be changed in {name}, a"
            f" {type(module).__name__}; only where a torch.nn.MultiheadAttention is replaced."
        )
    if not dense and not others:
        raise InputError(_nothing(model, layers is not None))
    for module in others.values():
        parsed.group_of(0, num_heads(module) or len(parsed.groups))
    with unchanged_on_error(model, contents=()):
        for module in dense.values():
            replace_module(model, module, SparseAttention.from_dense(module, text, **settings))
        for attention in sparse.values():
            attention.pattern = text
        for module in marked.values():
            mark(module, text)
        if any(map(calls_interface, marked.values())):
            connect(model)
        disable_fast_paths(model)
    return [*dense, *others]


def _nothing(model: nn.Module, has_rule: bool) -> str:
    """Why no layer can take a pattern."""
    kind = type(model).__name__
    family = family_of(model, "block")
    if has_rule:
        return f"{_WHERE}: no attention layer of {kind} has a name that layers= takes."
    if family is not None:
        return (
            f"{_WHERE}: layers of the family {family} compute their scores themselves, and {kind}"
            " takes no pattern."
        )
    return (
        f"{_WHERE}: found no attention to replace in {kind}: neither a torch.nn.MultiheadAttention"
        " nor a layer that calls transformers' attention interface."
    )
