# SPDX-License-Identifier: Apache-2.0
"""A small run with any schedule, for tests."""

import json

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gossamer
from gossamer.nn.layers import MaskedWeight

STEPS = 40
# Schedules at a size where every part of them happens within STEPS steps.
KINDS = {
    "oneshot": {"at": 10},
    "gradual": {"begin": 4, "end": 28, "every": 4},
    "gradual_regrow": {"begin": 4, "end": 28, "every": 4, "allow_regrow": True},
    "iterative_init": {"rounds": 3, "rewind": "init"},
    "iterative_step": {"rounds": 3, "rewind": "step", "to": 3},
    "iterative_lr": {"rounds": 3, "rewind": "lr", "to": 3},
    "iterative_finetune": {"rounds": 3, "rewind": "finetune", "to": 6},
    "random": {},
    "snip": {},
    "grasp": {},
    "synflow": {"rounds": 10},
    "set": {"every": 6, "end": 30},
    "rigl": {"every": 6, "end": 30},
    "rigl_summed": {"every": 6, "end": 30, "gradient_steps": 4},
    "topkast": {"every": 6, "end": 30, "exploration": 0.2},
    "acdc": {"begin": 4, "phase": 4, "last_dense": 28, "end": 34},
    "early_bird": {"every": 2, "end": 30, "threshold": 0.25},
}


def schedule(name, **changes):
    kind = name.split("_")[0] if name not in ("early_bird",) else name
    return {"kind": kind, "sparsity": 0.8, **KINDS[name], **changes}


def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 8)
    ).to(dtype)


def make_optimizer(name, model):
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)
    if name == "adam":
        return torch.optim.Adam(model.parameters(), 1e-2, weight_decay=1e-3, amsgrad=True)
    return torch.optim.AdamW(model.parameters(), 1e-2)


def batch_of(step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(32, 16, generator=generator, dtype=dtype)
    return x, (x[:, :8] * 2).argmax(1)


def batch_loss(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def attach(model, optimizer, given, steps=STEPS):
    return gossamer.attach(
        model, given, optimizer, total_steps=steps, data=[batch_of(0)], loss=batch_loss
    )


def train_step(model, optimizer, ctl, step):
    optimizer.zero_grad()
    loss = batch_loss(model, batch_of(step))
    extra = None if ctl is None else ctl.penalty()
    (loss if extra is None else loss + extra).backward()
    optimizer.step()
    return [] if ctl is None else ctl.step()


def masked_layers(model):
    return {name: m for name, m in model.named_modules() if isinstance(m, MaskedWeight)}


def run(given, optimizer_name="adamw", steps=STEPS, after=None):
    """A whole run; `after(step, model, optimizer, ctl, events)` looks at each step."""
    model = make_model()
    optimizer = make_optimizer(optimizer_name, model)
    ctl = attach(model, optimizer, given, steps)
    for step in range(1, steps + 1):
        events = train_step(model, optimizer, ctl, step)
        if after is not None:
            after(step, model, optimizer, ctl, events)
    return model, optimizer, ctl


def flat_tensors(value, path=()):
    """Tensors of a nested state by path; everything else must be JSON."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    if isinstance(value, dict):
        assert all(isinstance(key, str) for key in value)
        return {
            key: tensor
            for name, part in value.items()
            for key, tensor in flat_tensors(part, (*path, name)).items()
        }
    if isinstance(value, list):
        parts = (flat_tensors(part, (*path, str(i))) for i, part in enumerate(value))
        return {key: tensor for part in parts for key, tensor in part.items()}
    assert value is None or isinstance(value, (int, float, str, bool)), (path, type(value))
    json.dumps(value)
    return {}
