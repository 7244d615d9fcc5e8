# SPDX-License-Identifier: Apache-2.0
"""One training run on Fashion-MNIST under a schedule, and a file that remembers finished ones."""

import json
import math
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import gossamer

BATCH, WARM_UP = 128, 100
# Learning rate and weight decay.
OPTIMIZERS = {"sgd": (0.1, 5e-4), "adamw": (3e-3, 1e-2)}


def mlp():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(),
        nn.Linear(100, 10),
    )  # fmt: skip


def cnn():
    def stage(inner, outer, stride):
        conv = nn.Conv2d(inner, outer, 3, stride, padding=1, bias=False)
        return [conv, nn.BatchNorm2d(outer), nn.ReLU()]

    return nn.Sequential(
        *stage(1, 16, 2), *stage(16, 32, 2), *stage(32, 64, 1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


MODELS = {"mlp": mlp, "cnn": cnn}


def batch_loss(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def num_steps(data, epochs):
    """Of a run; the rest of an epoch that is no whole batch is left out."""
    return epochs * (len(data.x_train) // BATCH)


def train(data, *, model, schedule, seed, epochs, optimizer="sgd", again=0.0):
    """Accuracy in percent and what happened.

    Args:
        data: `fashion.Images`.
        model: of MODELS.
        schedule: as `gossamer.attach` takes it; None trains dense.
        seed: of weights, batches and schedule.
        epochs: length of the run.
        optimizer: of OPTIMIZERS; cosine learning rate with a warm-up.
        again: after the run this part of it follows once more, at the learning rates of its end.
    """
    torch.manual_seed(seed)
    net = MODELS[model]()
    steps = num_steps(data, epochs)
    total = steps + round(again * steps)
    stepper = _optimizer(net, optimizer)
    ctl = None
    if schedule is not None:
        first = [(data.x_train[:500], data.y_train[:500])]
        ctl = gossamer.attach(
            net, {**schedule, "seed": seed}, stepper, total_steps=total, data=first, loss=batch_loss
        )
    start = time.process_time()
    for step, index in zip(range(total), _batches(len(data.x_train), seed), strict=False):
        # Behind the end of the run the learning rate has gone back by as much as follows.
        position = step if step < steps else step - round(again * steps)
        for group in stepper.param_groups:
            group["lr"] = OPTIMIZERS[optimizer][0] * _rate(position, steps)
        stepper.zero_grad()
        loss = batch_loss(net, (data.x_train[index], data.y_train[index]))
        extra = None if ctl is None else ctl.penalty()
        (loss if extra is None else loss + extra).backward()
        stepper.step()
        if ctl is not None:
            ctl.step()
    return {
        "accuracy": accuracy(net, data),
        "sparsity": 0.0 if ctl is None else ctl.sparsity(),
        "cpu_seconds": time.process_time() - start,
        "ticket": _ticket(ctl, steps),
    }


@torch.inference_mode()
def accuracy(model, data):
    """Percent of the test images."""
    model.eval()
    hits = sum(
        int((model(x).argmax(1) == y).sum())
        for x, y in zip(data.x_test.split(1000), data.y_test.split(1000), strict=True)
    )
    return 100.0 * hits / len(data.y_test)


class Finished:
    """Results of finished runs by everything that decides them, in a file of JSON lines."""

    def __init__(self, file):
        self._file = None if file is None else Path(file)
        self._known = {}
        if self._file is not None and self._file.exists():
            for line in self._file.read_text().splitlines():
                case, result = json.loads(line)
                self._known[json.dumps(case)] = result

    def get(self, case, make):
        """The result of `case`; `make()` computes what is not known yet."""
        key = json.dumps(case)
        if key not in self._known:
            self._known[key] = make()
            if self._file is not None:
                with self._file.open("a") as lines:
                    lines.write(json.dumps([case, self._known[key]]) + "\n")
        return self._known[key]


def _optimizer(model, name):
    rate, decay = OPTIMIZERS[name]
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    if name == "sgd":
        return torch.optim.SGD(groups, rate, momentum=0.9, weight_decay=decay, fused=True)
    return torch.optim.AdamW(groups, rate, weight_decay=decay, fused=True)


def _batches(count, seed):
    """Whole batches of shuffled indices, epoch after epoch."""
    order = torch.Generator().manual_seed(seed)
    while True:
        shuffled = torch.randperm(count, generator=order)
        yield from shuffled[: count // BATCH * BATCH].split(BATCH)


def _rate(position, steps):
    return min(1.0, (position + 1) / WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * position / steps))


def _ticket(ctl, steps):
    """When Early-Bird drew, as a fraction of the run."""
    drawn = [] if ctl is None else [event for event in ctl.events if event.kind == "ticket"]
    if not drawn:
        return None
    return {"at": drawn[0].step / steps, "agreed": drawn[0].details["agreed"]}
