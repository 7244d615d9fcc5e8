# SPDX-License-Identifier: Apache-2.0
"""When a schedule acts, and how much: windows of steps, the cubic ramp, the cosine, seeds."""

import hashlib
import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Window:
    """Steps begin, begin + every, ... up to `end`, which always is one of them.

    Attributes:
        begin: first step.
        end: last step.
        every: steps in between.
    """

    begin: int
    end: int
    every: int

    def holds(self, step: int) -> bool:
        """Whether something happens after `step`."""
        return step == self.end or step in range(self.begin, self.end, self.every)

    def progress(self, step: int) -> float:
        """0 at begin, 1 at the end and after."""
        if self.begin < step < self.end:
            return (step - self.begin) / (self.end - self.begin)
        return float(step >= self.end)


def cubic(initial: float, final: float, progress: float) -> float:
    """Sparsity of gradual pruning (arXiv 1710.01878); 7/8 of the way at half time."""
    return final + (initial - final) * (1.0 - progress) ** 3


def cosine(first: float, progress: float) -> float:
    """`first` in the beginning, 0 at the end."""
    return first / 2 * (1.0 + math.cos(math.pi * progress))


def generator(seed: int, name: str, step: int) -> torch.Generator:
    """The same numbers for the same seed, layer and step, on every rank and after every resume."""
    digest = hashlib.sha256(f"{seed}/{name}/{step}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
