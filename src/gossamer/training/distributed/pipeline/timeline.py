# SPDX-License-Identifier: Apache-2.0
"""What every stage did when: spans of time, recorded by stages and by the fake network alike."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch

# "backward" is a whole one; zero-bubble schedules split it into "input" and "weight".
Kind = Literal["forward", "backward", "input", "weight"]


_KINDS: tuple[Kind, ...] = get_args(Kind)


class Span(NamedTuple):
    """One piece of work.

    Attributes:
        stage: who did it.
        kind: what.
        microbatch: on which.
        start: seconds on a clock that all stages share.
        stop: likewise.
    """

    stage: int
    kind: Kind
    microbatch: int
    start: float
    stop: float


def spans_to_tensor(spans: Sequence[Span]) -> torch.Tensor:
    """float64 [spans, 5], to be sent."""
    rows = [[s.stage, _KINDS.index(s.kind), s.microbatch, s.start, s.stop] for s in spans]
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), 5)


def spans_from_tensor(rows: torch.Tensor) -> list[Span]:
    """What `spans_to_tensor` was given."""
    return [
        Span(int(stage), _KINDS[int(kind)], int(microbatch), start, stop)
        for stage, kind, microbatch, start, stop in rows.tolist()
    ]


def most_held(spans: Sequence[Span], stage: int) -> int:
    """Most microbatches that a stage held between forward and the end of their backward."""
    changes = []
    for span in spans:
        if span.stage == stage and span.kind == "forward":
            changes.append((span.start, 1))
        elif span.stage == stage and span.kind in ("backward", "weight"):
            changes.append((span.stop, -1))
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most
