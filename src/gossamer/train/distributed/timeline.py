# SPDX-License-Identifier: Apache-2.0
"""What every stage did when: spans of time, recorded by stages and by the fake network alike."""

from typing import Literal, NamedTuple

# "backward" is a whole one; zero-bubble schedules split it into "input" and "weight".
Kind = Literal["forward", "backward", "input", "weight"]


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


def most_held(spans: list[Span], stage: int) -> int:
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
