# SPDX-License-Identifier: Apache-2.0
"""Patterns in models of transformers, by its own interface for attention functions.

Layers call a function by the name in their configuration. `gossamer` is such a name: the function
reads the pattern from the layer. Masks of all pairs are not made; padding comes as one bit per
token.
"""

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.errors import InputError
from gossamer.nn.attention.marks import FULL, marked_with
from gossamer.ops.attention import attention
from gossamer.patterns.attention import parse_attention

_NAME = "gossamer"
# What some layers also give their function, and what a pattern would leave out.
_CHANGING = ("position_bias", "s_aux", "block_indices", "cu_seq_lens_q", "cu_seqlens")


def connect(model: nn.Module) -> None:
    """Let all models of transformers inside `model` call gossamer's function for attention."""
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
    from transformers.masking_utils import flash_attention_mask

    AttentionInterface.register(_NAME, _attention)
    AttentionMaskInterface.register(_NAME, flash_attention_mask)
    inner: set[int] = set()
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and id(module) not in inner:
            inner.update(map(id, module.modules()))
            module.set_attn_implementation(_NAME)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """What layers call: [batch, heads, tokens, dim] gives [batch, tokens, heads, dim]."""
    unknown = next((name for name in _CHANGING if others.get(name) is not None), None)
    if unknown is not None:
        raise InputError(
            f"replace_attention: {type(module).__name__} gives its attention '{unknown}', which a"
            " pattern does not compute. Leave these layers out (layers=...)."
        )
    text = marked_with(module)
    is_causal = others.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    window = others.get("sliding_window") or getattr(module, "sliding_window", None)
    if window:
        text = _within(text, int(window), causal)
    out = attention(
        query,
        key,
        value,
        text,
        causal=causal,
        scale=scaling,
        dropout=dropout,
        softcap=others.get("softcap"),
        lengths=_lengths(attention_mask, key.shape[2]),
    )
    return out.transpose(1, 2).contiguous(), None


def _within(text: str, window: int, causal: bool) -> str:
    """The pattern of a layer with a window of its own: the window, if the pattern is full.

    Windows count the token itself, and to both sides where they are not causal.
    """
    length = window if causal else 2 * (window - 1)
    if text == FULL:
        return f"window:{length}"
    terms = parse_attention(text).groups
    widest = max(getattr(term, "length", length + 1) for group in terms for term in group)
    if widest > length:
        raise InputError(
            f"replace_attention: '{text}' reaches further than this layer's own window of {window}."
            " Give a window that is at most as long, or leave this layer out (layers=...)."
        )
    return text


def _lengths(mask: Tensor | None, keys: int) -> Tensor | None:
    if mask is None:
        return None
    if mask.ndim != 2 or mask.shape[1] != keys:
        raise InputError(
            f"replace_attention: expected one bit per token, got a mask {list(mask.shape)} for"
            f" {keys} keys. Give attention_mask as [batch, tokens]."
        )
    seen = mask.bool()
    lengths = seen.sum(1)
    if not torch.compiler.is_compiling():
        place = torch.arange(keys, device=mask.device)
        if not torch.equal(place < lengths[:, None], seen):
            raise InputError(
                "replace_attention: padding must stand at the end of a sequence; found tokens"
                " behind some. Pad on the right (tokenizer.padding_side = 'right')."
            )
    return lengths
