# SPDX-License-Identifier: Apache-2.0
"""A tiny float64 GPT, compact or dense, trained for a few steps on any grid."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gossamer.nn as gnn
from gossamer.data import RepeatedBatches
from gossamer.nn.surgery import replace_module
from gossamer.training.loop import LearningRate, Loop, LoopSettings
from gossamer.zoo import GPT

STEPS = 5
VOCABULARY, CONTEXT, BATCH = 11, 8, 8


def build(kind: str) -> nn.Module:
    """`compact`, `dense` or `tied`, which is compact with one weight for head and embedding."""
    torch.manual_seed(0)
    model = GPT(
        VOCABULARY, width=16, num_heads=4, num_layers=4, context=CONTEXT, tied=kind == "tied"
    ).double()
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.05 * torch.randn_like(param))
    if kind != "dense":
        for name, layer in list(model.named_modules()):
            if isinstance(layer, nn.Linear) and name != "head":
                mask = torch.rand(layer.weight.shape) < 0.3
                replace_module(model, layer, gnn.Linear.from_dense(layer, mask))
    return model


def batches() -> RepeatedBatches:
    generator = torch.Generator().manual_seed(7)
    shape = (BATCH, CONTEXT + 1)
    return RepeatedBatches(
        [torch.randint(VOCABULARY, shape, generator=generator) for _ in range(3)]
    )


def loss(model: nn.Module, ids_BT: torch.Tensor) -> torch.Tensor:
    logits = model(ids_BT[:, :-1])
    return cross_entropy(logits.flatten(0, 1), ids_BT[:, 1:].flatten())


def make_loop(
    model: nn.Module, processes=None, *, steps=STEPS, accumulate=1, grow=(), **more
) -> Loop:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others}], lr=0.01
    )
    settings = LoopSettings(
        steps=steps,
        rate=LearningRate("constant", steps, 0),
        clip=0.5,
        accumulate=accumulate,
        compaction="jit",
        log_every=1,
        grow=grow,
    )
    return Loop(model, optimizer, loss, batches(), settings, processes=processes, **more)


def alone(kind: str, **settings) -> Loop:
    loop = make_loop(build(kind), **settings)
    loop.train()
    return loop


def largest_difference(model: nn.Module, other: nn.Module) -> float:
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return max((float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel()))
