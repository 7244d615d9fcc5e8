# SPDX-License-Identifier: Apache-2.0
"""A Llama of 1.1 billion random weights, half of them zeros.

Its layers are one and the same in fp32; the engine packs each of them into memory of its own.
"""

import time

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from support.decoders import Gossamer

LAYERS = 22
SHAPE = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}


def large_contender(dtype, sparsity=0.5):
    """The packed engine; `load_seconds` is packing, without drawing the weights."""
    config = LlamaConfig(num_hidden_layers=1, **SHAPE)

    def make():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        (layer,) = model.model.layers
        with torch.no_grad():
            for linear in layer.modules():
                if isinstance(linear, nn.Linear):
                    linear.weight.mul_(torch.rand_like(linear.weight) >= sparsity)
        model.model.layers = nn.ModuleList([layer] * LAYERS)
        return model

    model = make()
    started = time.perf_counter()
    made = Gossamer(f"gossamer 1.1 B, {sparsity:.0%} {dtype}", lambda: model, dtype)
    made.load_seconds = time.perf_counter() - started
    return made
