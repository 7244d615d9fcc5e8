# SPDX-License-Identifier: Apache-2.0
"""The attention of a model that exists is given a pattern."""

from collections.abc import Callable
from typing import Any

from torch import nn

from gossamer.errors import InputError
from gossamer.nn.attention.of_transformers import patterned, uses_interface
from gossamer.nn.attention.sparse import SparseAttention
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
    `torch.nn.MultiheadAttention`, and all of transformers that call its attention interface: BERT,
    RoBERTa, GPT-2, OPT, Llama, Mistral, Qwen2, Gemma, ModernBERT and others. A layer that is causal
    stays so. A model of transformers keeps a window that it has of its own.

    Args:
        model: is changed.
        pattern: such as 'window:512+global:64'.
        layers: says by its name whether a layer is changed; None = all are.
        settings: for `SparseAttention`, where a MultiheadAttention is replaced.
    """
    text = str(parse_attention(pattern))
    wanted = layers or (lambda name: True)
    dense = {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.MultiheadAttention and wanted(name)
    }
    names = list(dense)
    if uses_interface(model):
        names += patterned(model, text, wanted, settings)
    with unchanged_on_error(model):
        for module in dense.values():
            replace_module(model, module, SparseAttention.from_dense(module, text, **settings))
        disable_fast_paths(model)
    if not names:
        raise InputError(
            f"{_WHERE}: found no attention to replace in {type(model).__name__}: neither a"
            " torch.nn.MultiheadAttention nor a layer that calls transformers' attention interface."
        )
    return names
