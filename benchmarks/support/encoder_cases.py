# SPDX-License-Identifier: Apache-2.0
"""Encoders that are measured, how they are pruned, and the goals beside them."""

from dataclasses import dataclass

import torch
from torch import nn

SEQUENCE = 128
SPARSITIES = (0.5, 0.8, 0.9, 0.95)
# Few words: a row is looked up per token, whatever their number.
_WORDS = 2000


@dataclass(frozen=True)
class Shape:
    """Sizes of a BERT-like encoder."""

    title: str
    features: int
    inner: int
    layers: int
    heads: int


MINILM = Shape("MiniLM-L6", 384, 1536, 6, 12)
BERT = Shape("BERT-base", 768, 3072, 12, 12)
TINY = Shape("tiny", 64, 128, 2, 2)  # to see in a minute that every engine runs
SHAPES = {"minilm": MINILM, "bert": BERT, "tiny": TINY}

# Speed-up over ONNX Runtime fp32 dense by (shape, batch): fp32 by sparsity, and int8 at 90 %.
_FP32_GOALS = {
    ("MiniLM-L6", 1): {0.8: 2.9, 0.9: 4.2, 0.95: 5.5},
    ("MiniLM-L6", 8): {0.8: 3.6, 0.9: 5.0, 0.95: 5.8},
    ("BERT-base", 1): {0.8: 3.3, 0.9: 5.0, 0.95: 7.5},
    ("BERT-base", 8): {0.8: 4.3, 0.9: 6.5, 0.95: 8.0},
}
_INT8_GOALS = {
    ("MiniLM-L6", 1): 6.0,
    ("MiniLM-L6", 8): 6.5,
    ("BERT-base", 1): 8.5,
    ("BERT-base", 8): 10.0,
}
# Two threads against one, at every goal.
THREADS_GOAL = 1.7


def goal(title, batch, precision, sparsity):
    """Speed-up that is wanted on one thread; None where nothing is."""
    if precision == "int8":
        return _INT8_GOALS.get((title, batch)) if sparsity == 0.9 else None
    return _FP32_GOALS.get((title, batch), {}).get(sparsity)


def random_encoder(shape, sparsity):
    """Random weights; masks of a higher sparsity are inside those of a lower one."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=shape.features,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        vocab_size=_WORDS,
    )
    model = BertModel(config, add_pooling_layer=False).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for module in model.encoder.modules():
        if isinstance(module, nn.Linear):
            chances = torch.rand(module.weight.shape, generator=generator)
            module.weight.mul_(chances >= sparsity)
            module.bias.normal_(0, 0.02, generator=generator)
    return model
