# SPDX-License-Identifier: Apache-2.0
"""The plain call of a BERT or RoBERTa model around a native encoder, without its detours.

`model(input_ids, attention_mask)` of transformers builds a mask of all pairs of tokens and asks its
configuration dozens of things, which shows beside a fast encoder. Here it is embeddings, encoder,
pooler. Every other call goes the model's own way.
"""

import importlib
import types
from typing import Any

import torch
from torch import nn

from gossamer.nn.families import answers
from gossamer.running.encoder.native_encoder import NativeEncoder

_MODELS = {facts.plain_model for facts in answers("encoder").values()}


def short_forward(
    self: Any,
    input_ids: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
    token_type_ids: torch.Tensor | None = None,
    **others: Any,
) -> Any:
    """What the model gives; bound to it in the place of its own `forward`."""
    config = self.config
    more = {name for name, value in others.items() if value is not None and value is not False}
    is_plain = (
        not torch.compiler.is_compiling()
        and input_ids is not None
        and input_ids.ndim == 2
        and input_ids.numel() >= self.encoder.min_tokens
        and (attention_mask is None or attention_mask.shape == input_ids.shape)
        and more <= {"return_dict"}
        and others.get("return_dict") is not False
        and not (config.output_hidden_states or config.output_attentions)
        and config.return_dict
    )
    if not is_plain:
        return type(self).forward(self, input_ids, attention_mask, token_type_ids, **others)
    embedded_BTD = self.embeddings(input_ids=input_ids, token_type_ids=token_type_ids)
    hidden_BTD = self.encoder(embedded_BTD, attention_mask).last_hidden_state
    pooled_BD = None if self.pooler is None else self.pooler(hidden_BTD)
    outputs = importlib.import_module("transformers.modeling_outputs")
    return outputs.BaseModelOutputWithPoolingAndCrossAttentions(
        last_hidden_state=hidden_BTD, pooler_output=pooled_BD
    )


def shorten_forward(model: nn.Module) -> None:
    """Give every model around a native encoder its short way."""
    for module in model.modules():
        kind = type(module)
        known = f"{kind.__module__}.{kind.__name__}" in _MODELS
        own = "forward" in module.__dict__ or kind.forward.__module__ != kind.__module__
        if known and not own and isinstance(getattr(module, "encoder", None), NativeEncoder):
            # A bound method: a copy of the model gets one of its own.
            module.forward = types.MethodType(short_forward, module)
