"""Layers that take their time without a core, so that four hosts fit on a small machine.

A forward sleeps `seconds`, a backward twice that. Sleeping instead of computing keeps hosts from
disturbing each other; whatever else a step takes is messages and decisions.
"""

import random
import time

import torch
from torch import nn


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        time.sleep(layer.draw("forward"))
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.layer.draw("backward"))
        return gradient.clone(), None


class SleepingLayer(nn.Module):
    """Passes its input on after a while; now and then, if `jitter` is set, after a longer one.

    Args:
        seconds: of a forward.
        jitter: seconds more, in a tenth of the calls.
    """

    def __init__(self, seconds, jitter=0.0):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.seconds, self.jitter = seconds, jitter
        self.restart(0)

    def draw(self, direction):
        """Seconds of the next call."""
        late = self.jitter if self.numbers[direction].random() < 0.1 else 0.0
        return self.seconds + late

    def restart(self, seed):
        """From here the same hiccups again: every microbatch has its own, in any order of work."""
        ways = ("forward", "backward")
        self.numbers = {way: random.Random(f"{seed} {way}") for way in ways}  # noqa: S311

    def forward(self, x):
        """The input, scaled and late."""
        return _Sleep.apply(x * self.scale, self)
