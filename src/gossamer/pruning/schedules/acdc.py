# SPDX-License-Identifier: Apache-2.0
"""AC/DC (arXiv 2106.12379): compressed and dense phases alternate, the last one is compressed."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Literal

import torch

from gossamer.pruning.schedules.base import Events, Schedule

Phase = Literal["dense", "sparse"]


def phases(begin: int, phase: int, last_dense: int, end: int) -> dict[int, Phase]:
    """Step -> what begins there.

    Sparse at `begin`, then alternating every `phase` steps until `last_dense`, where the last dense
    phase begins; sparse for good from `end`. In hundredths of a run, 10, 5, 75 and 85 are the
    published schedule: sparse at 10, 20, ..., 70 and 85, dense at 15, 25, ..., 75.
    """
    alternating: Iterator[Phase] = cycle(("sparse", "dense"))
    found = dict(zip(range(begin, last_dense, phase), alternating, strict=False))
    if len(found) % 2:
        found[last_dense] = "dense"
    return {**found, end: "sparse"}


@dataclass(eq=False, kw_only=True)
class AcDc(Schedule):
    """Masks by magnitude at each compression; decompressed weights come back as zeros.

    Attributes:
        changes: see `phases`.
        reset_momentum: clear the optimizer's state at each decompression.
    """

    changes: dict[int, Phase]
    reset_momentum: bool
    kind = "acdc"
    grows = True

    def update(self, step: int) -> Events:
        """Compress or decompress, if it is due; the first phase may be sparse."""
        change, run = self.changes.get(step), self.run
        if change is None:
            return []
        if change == "sparse":
            self.prune()
            return [run.event(step, "mask")]
        run.change([torch.ones_like(layer.mask) for layer in run.layers])
        if self.reset_momentum:
            for layer in run.layers:
                run.entries.forget(layer.name, layer.weight)
        return [run.event(step, "dense")]

    def is_settled(self, step: int) -> bool:
        """After the last compression."""
        return step >= max(self.changes)
