# SPDX-License-Identifier: Apache-2.0
"""Tiny encoders of every known family, with zeros in their layers."""

import torch
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    RobertaConfig,
    RobertaModel,
)

_SIZES = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "vocab_size": 50,
}
_DISTILBERT = {"dim": 24, "hidden_dim": 40, "n_layers": 2, "n_heads": 3, "vocab_size": 50}
FAMILIES = ("BERT", "RoBERTa", "DistilBERT")


def tiny_encoder(family="BERT", sparsity=0.5, **sizes):
    """In eval mode, biases and norms random too; `sizes` are fields of BertConfig."""
    torch.manual_seed(0)
    model = {
        "BERT": lambda: BertModel(BertConfig(**{**_SIZES, **sizes}), add_pooling_layer=False),
        "RoBERTa": lambda: RobertaModel(RobertaConfig(**_SIZES), add_pooling_layer=False),
        "DistilBERT": lambda: DistilBertModel(DistilBertConfig(**_DISTILBERT)),
    }[family]()
    for name, parameter in model.named_parameters():
        parameter.data.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.3)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight.data.mul_(torch.rand_like(module.weight) >= sparsity)
    return model.eval().requires_grad_(False)
