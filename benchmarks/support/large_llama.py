# SPDX-License-Identifier: Apache-2.0
"""A Llama of 1.1 billion random weights, half of them zeros, made one layer at a time.

Only one layer exists in fp32 at any moment: the engine packs it and asks for the next.
"""

import time

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

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


class Layers(nn.ModuleList):
    """Makes layers when they are asked for; `seconds` is what that took."""

    def __init__(self, config, sparsity):
        super().__init__()
        self._config, self._sparsity = config, sparsity
        self.seconds = 0.0

    def __iter__(self):
        for number in range(LAYERS):
            started = time.perf_counter()
            torch.manual_seed(number)
            layer = LlamaDecoderLayer(self._config, number)
            with torch.no_grad():
                for linear in layer.modules():
                    if isinstance(linear, nn.Linear):
                        linear.weight.mul_(torch.rand_like(linear.weight) >= self._sparsity)
            self.seconds += time.perf_counter() - started
            yield layer


def large_contender(dtype, sparsity=0.5):
    """The packed engine; `load_seconds` is packing, without drawing the weights."""
    config = LlamaConfig(num_hidden_layers=0, **SHAPE)
    layers = Layers(config, sparsity)

    def make():
        model = LlamaForCausalLM(config)
        model.model.layers = layers
        return model

    started = time.perf_counter()
    made = Gossamer(f"gossamer 1.1 B, {sparsity:.0%} {dtype}", make, dtype)
    made.load_seconds = time.perf_counter() - started - layers.seconds
    return made
