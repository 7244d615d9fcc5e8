# SPDX-License-Identifier: Apache-2.0
"""What dropping tokens takes from the layers of BERT: their attention, and where they are.

`attend` also says how much every token of a padded batch is looked at. `find_stacks` finds stacks
of layers, `check_uncalled` says which of their modules dropping tokens leaves uncalled.

Legend: B batch, T tokens, D width, H heads, E width of a head.
"""

from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import dropout

from gossamer.errors import InputError, TargetError
from gossamer.nn.families import answers, block_of
from gossamer.nn.surgery.carried import carried_by_calls

__all__ = [
    "attend",
    "check_uncalled",
    "find_encoder",
    "find_stacks",
    "first_tokens",
    "fixed_divisor",
    "heads_of",
    "live_tokens",
]

_UNCALLED = {name for facts in answers("tokens").values() for name in facts.uncalled}


def live_tokens(mask: torch.Tensor | None, hidden_BTD: torch.Tensor) -> torch.Tensor:
    """Bool [B, T], False where a token is padding, from any mask a BERT encoder is given.

    Args:
        mask: None, [B, T], or [B, 1, T or 1, T], as bool or numbers (True or 1 is a token) or as
            what is added to attention scores (0 is a token).
        hidden_BTD: the embedded batch.
    """
    batch, tokens = hidden_BTD.shape[:2]
    if mask is None:
        return torch.ones(batch, tokens, dtype=torch.bool, device=hidden_BTD.device)
    added = mask.ndim == 4 and mask.is_floating_point()
    flat = mask[:, 0, 0] if mask.ndim == 4 else mask
    if flat.shape[-1:] != (tokens,) or flat.ndim != 2 or flat.shape[0] not in (1, batch):
        raise InputError(
            f"encoder: expected an attention mask [B, T] or [B, 1, T, T] for hidden states"
            f" {list(hidden_BTD.shape)}, got {list(mask.shape)}."
        )
    live_BT = (flat == 0 if added else flat.bool()).expand(batch, tokens)
    empty = (~live_BT.any(dim=1)).nonzero().flatten().tolist()
    if empty:
        raise InputError(
            f"encoder: sequence {empty[0]} of the batch has no token that is not padding."
            " Leave it out."
        )
    return live_BT


def first_tokens(live_BT: torch.Tensor) -> torch.Tensor:
    """Bool [B, T], True at the first live token of a sequence: [CLS], never dropped."""
    return torch.zeros_like(live_BT).scatter_(1, live_BT.int().argmax(dim=1, keepdim=True), True)


def heads_of(attention: Any, x_BTD: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Query, key and value [B, H, T, E] of a BERT self-attention module."""
    width = attention.attention_head_size
    query, key, value = (
        project(x_BTD).unflatten(-1, (-1, width)).transpose(1, 2)
        for project in (attention.query, attention.key, attention.value)
    )
    return query, key, value


def attend(
    attention: nn.Module,
    x_BTD: torch.Tensor,
    live_BT: torch.Tensor,
    log_weight_BT: torch.Tensor | None,
    length: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mixed heads [B, T, H E] before the output projection, and the importance [B, T] of tokens.

    The importance of a token is the attention it receives, averaged over heads and live queries.
    It is read before dropout: dropout would make it noise that thresholds then learn.

    Args:
        attention: `attention.self` of a BERT layer.
        x_BTD: input of the layer.
        live_BT: tokens that exist; others are neither asked nor asking.
        log_weight_BT: logarithm of how much a live token still counts, None where all count fully.
        length: what the sum over queries is divided by; None for the number (weight) of live ones.
    """
    own: Any = attention
    query, key, value = heads_of(own, x_BTD)
    scores = query @ key.transpose(-1, -2) * own.scaling
    weight_BT = live_BT.to(scores.dtype)
    if log_weight_BT is not None:
        scores = scores + log_weight_BT[:, None, None, :]
        weight_BT = weight_BT * log_weight_BT.exp()
    chances = scores.masked_fill(~live_BT[:, None, None, :], -torch.inf).softmax(dim=-1)
    received_BT = torch.einsum("bhij,bi->bj", chances, weight_BT) / chances.shape[1]
    asked = weight_BT.sum(dim=1, keepdim=True) if length is None else length
    mixed = dropout(chances, own.dropout.p, own.training) @ value
    return mixed.transpose(1, 2).flatten(-2), received_BT / asked


def fixed_divisor(normalise: str, padded_length: int) -> int | None:
    """The fixed length importance is divided by, None for the live one."""
    return {"live": None, "padded": padded_length, "received": 1}[normalise]


def check_uncalled(encoder: nn.Module) -> None:
    """Refuse hooks on modules that are not called any more once tokens can be dropped."""
    for name, module in encoder.named_modules():
        last = name.rpartition(".")[2]
        uncalled = not name or last in _UNCALLED or last.isdigit()
        reason = carried_by_calls(module) if uncalled else None
        if reason is not None:
            raise TargetError(
                f"{name or 'the encoder'}: {reason}, and the module would not be called any more."
                " Remove it first, or put it on a module inside."
            )


def find_encoder(model: nn.Module) -> nn.Module:
    """The one module whose `layer` list holds BERT layers."""
    found = find_stacks(model, "tokens")
    if len(found) != 1:
        raise TargetError(
            f"token pruning: expected one encoder of the families {', '.join(answers('tokens'))} in"
            f" {type(model).__name__}, found {len(found)}"
            + (f": {', '.join(name or 'the model' for name, _ in found)}." if found else ".")
        )
    name, encoder = found[0]
    layers: Any = encoder.layer
    for number, layer in enumerate(layers):
        where = f"{name}.layer.{number}"
        if getattr(layer, "is_decoder", False):
            raise TargetError(f"{where}: is a decoder layer; token pruning needs an encoder.")
        if not hasattr(layer.attention.self, "query"):
            raise TargetError(f"{where}: has no heads left, so tokens have no importance in it.")
    return encoder


def find_stacks(
    model: nn.Module, question: Literal["encoder", "tokens"]
) -> list[tuple[str, nn.Module]]:
    """Modules whose list `layer` holds blocks, all of families that answer `question`."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(layers := getattr(module, "layer", None), nn.ModuleList)
        and len(layers)
        and all(block_of(layer, question) for layer in layers)
    ]
