# SPDX-License-Identifier: Apache-2.0
"""Models, batches and training of the pipeline tests: in one process, and on a grid of ranks."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import gossamer.nn as gnn
from gossamer.nn.surgery import replace_module
from gossamer.training.distributed.pipeline import LayerPipeline, PipelineSettings
from gossamer.zoo import GPT

STEPS = 5
TOKENS = 7
VOCABULARY = 11


@dataclass(frozen=True)
class Case:
    """One training run: which model, on which grid, by which schedule."""

    schedule: str
    ranks: int
    form: str = "compact"
    data: int = 1
    microbatches: int = 4
    stages: int | None = None
    mode: str = "jit"

    def __str__(self):
        return "-".join(str(part) for part in vars(self).values() if part is not None)


def build(form, mode="jit", num_layers=9):
    """A GPT with a tied head; odd sizes, so that messages have odd numbers of elements."""
    torch.manual_seed(0)
    model = GPT(VOCABULARY, width=9, num_heads=3, num_layers=num_layers, context=8, tied=True)
    model.double()
    for param in model.parameters():
        torch.nn.init.normal_(param, std=0.3)
    if form == "compact":
        for name, layer in list(model.named_modules()):
            if isinstance(layer, torch.nn.Linear) and name.startswith("blocks"):
                mask = torch.rand(layer.weight.shape) < 0.4
                replace_module(model, layer, gnn.Linear.from_dense(layer, mask, mode=mode))
    return model


def batch_of(step, size):
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, VOCABULARY, (size, TOKENS + 1), generator=generator)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def loss_of(output, target):
    return cross_entropy(output.flatten(0, 1), target.flatten())


def batch_size(case):
    return case.microbatches * case.data


def adamw(parameters):
    """AdamW whose eps is above rounding.

    The bias of a key changes no softmax, so its gradient is rounding alone, about 1e-18; divided by
    the usual 1e-8 its last bits would show in the twelfth digit of a weight.
    """
    return torch.optim.AdamW(parameters, 0.01, eps=1e-6)


def train_alone(case):
    """Losses and parameters of one process."""
    model = build(case.form, case.mode)
    optimizer = adamw(model.parameters())
    losses = []
    for step in range(STEPS):
        ids, target = batch_of(step, batch_size(case))
        optimizer.zero_grad()
        loss = loss_of(model(ids), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, dict(model.named_parameters(remove_duplicate=False)), model


def train_on_ranks(case, pipe_group, data_group):
    """Losses and this rank's parameters; a data-parallel replica takes its part of the batch."""
    model = build(case.form, case.mode)
    place = dist.get_rank(data_group) if data_group is not None else 0
    share = slice(place * case.microbatches, (place + 1) * case.microbatches)
    example, _ = batch_of(0, 1)
    settings = PipelineSettings(case.microbatches, case.schedule, case.stages)
    pipeline = LayerPipeline(model, loss_of, (example,), settings, group=pipe_group)
    del model
    optimizer = adamw(pipeline.parameters())
    losses = []
    for step in range(STEPS):
        ids, target = (part[share] for part in batch_of(step, batch_size(case)))
        loss = torch.tensor(pipeline.step(ids, target=target), dtype=torch.float64)
        if data_group is not None:
            dist.all_reduce(loss, group=data_group)
            loss /= case.data
            for parameter in pipeline.parameters():
                dist.all_reduce(parameter.grad, group=data_group)
                parameter.grad /= case.data
        optimizer.step()
        losses.append(float(loss))
    pipeline.train(False)
    output = pipeline.predict(batch_of(99, 3)[0])
    return losses, dict(pipeline.named_parameters()), output, pipeline
