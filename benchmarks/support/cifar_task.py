# SPDX-License-Identifier: Apache-2.0
"""ResNet-20 trained on with the dense network as teacher: a task for `gossamer train --model`."""

import os
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, mse_loss, pad

from gossamer.data import ShuffledBatches, generator_of
from gossamer.data.tasks import Task
from gossamer.training.recovery.distillation import logits_term
from support.cifar import accuracy, load, normalised
from support.resnets import ResNet20, trained_resnet20

BATCH, SEED = 128, 0
HELD_OUT = 2000  # training images that choose nothing but are watched during the run
_SHIFT = 4
_TEMPERATURE, _TEACHER_SHARE = 4.0, 0.7
# What the maps of a stage weigh that differ from the teacher's, beside the logits. A short run has
# no time to find maps of its own.
_MAPS = {"layer2": 0.25, "layer3": 0.5}


class Augmented:
    """Batches by number: shuffled, shifted by up to 4 pixels, every other one mirrored."""

    def __init__(self, x_N3HW, labels_N):
        self._x, self._labels = x_N3HW, labels_N
        self._order = ShuffledBatches(len(x_N3HW), BATCH, SEED, lambda index: index)

    def __len__(self):
        return len(self._order)

    def __getitem__(self, number):
        index = self._order[number]
        generator = generator_of(SEED, number)
        x = pad(normalised(self._x[index]), (_SHIFT,) * 4)
        shifts = torch.randint(2 * _SHIFT + 1, (len(x), 2), generator=generator).tolist()
        side = self._x.shape[-1]
        cut = torch.stack(
            [
                image[:, down : down + side, right : right + side]
                for image, (down, right) in zip(x, shifts, strict=True)
            ]
        )
        mirrored = torch.rand(len(x), generator=generator) < 0.5
        cut[mirrored] = cut[mirrored].flip(-1)
        # Dense convolutions of this size are faster so.
        return cut.contiguous(memory_format=torch.channels_last), self._labels[index]


def with_maps(model, x):
    """Logits, and what the stages of `_MAPS` gave on the way."""
    maps = {}

    def keeping(name):
        return lambda module, given, result: maps.__setitem__(name, result)

    hooks = [getattr(model, name).register_forward_hook(keeping(name)) for name in _MAPS]
    try:
        return model(x), maps
    finally:
        for hook in hooks:
            hook.remove()


def distilled_resnet20():
    """The task; the environment names the images: GOSSAMER_CIFAR=cifar10.npz."""
    data = load(Path(os.environ["GOSSAMER_CIFAR"]))
    teacher = trained_resnet20().requires_grad_(False)
    held = data.x_train[-HELD_OUT:], data.y_train[-HELD_OUT:]
    batches = Augmented(data.x_train[:-HELD_OUT], data.y_train[:-HELD_OUT])

    def loss(model, batch):
        x, labels = batch
        logits, maps = with_maps(model, x)
        with torch.no_grad():
            wanted, wanted_maps = with_maps(teacher, x)
        taught = logits_term(logits, wanted, _TEMPERATURE)
        apart = sum(
            weight * mse_loss(maps[name], wanted_maps[name]) / wanted_maps[name].square().mean()
            for name, weight in _MAPS.items()
        )
        own = cross_entropy(logits, labels)
        return _TEACHER_SHARE * taught + (1 - _TEACHER_SHARE) * own + apart

    return Task(
        name="CIFAR-10",
        batches=batches,
        loss=loss,
        evaluate=lambda model: {"accuracy": accuracy(model, *held) / 100},
        tokens=BATCH,
        example=batches[0][0],
        model=trained_resnet20(),
    )


def fresh_resnet20():
    """The task without a teacher: a new network learns the labels."""
    data = load(Path(os.environ["GOSSAMER_CIFAR"]))
    held = data.x_train[-HELD_OUT:], data.y_train[-HELD_OUT:]
    batches = Augmented(data.x_train[:-HELD_OUT], data.y_train[:-HELD_OUT])

    def loss(model, batch):
        x, labels = batch
        return cross_entropy(model(x), labels)

    return Task(
        name="CIFAR-10",
        batches=batches,
        loss=loss,
        evaluate=lambda model: {"accuracy": accuracy(model, *held) / 100},
        tokens=BATCH,
        example=batches[0][0],
        model=ResNet20(),
    )
