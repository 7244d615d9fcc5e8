# SPDX-License-Identifier: Apache-2.0
"""What a search found, and which of the models that were tried is the one to take."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gossamer.search.candidates import is_trained_dense
from gossamer.search.forecast import MaskForecast
from gossamer.search.long_texts import LongTexts
from gossamer.search.trial import Point

# Times this close are the same: then the smaller one is taken.
_SAME_TIME = 1.03


@dataclass(frozen=True)
class SearchLimits:
    """What the user asked for; None is no limit."""

    max_loss: float
    max_ms: float | None = None
    max_bytes: int | None = None

    def met_by(self, point: Point) -> bool:
        """Whether the point is good, fast and small enough."""
        return self.excess(point) <= 0

    def excess(self, point: Point) -> float:
        """How far it is beyond the worst limit, as a part of it; 0 or less if all are met."""
        parts = [(point.lost - self.max_loss) / max(self.max_loss, 1e-4)]
        if self.max_ms is not None:
            parts.append(point.ms / self.max_ms - 1)
        if self.max_bytes is not None:
            parts.append(point.size / self.max_bytes - 1)
        return max(parts)


def front(points: Sequence[Point]) -> list[Point]:
    """Points that no other one beats in quality, time and bytes at once, fastest first."""
    return sorted(
        (p for p in points if not any(_beats(other, p) for other in points)), key=lambda p: p.ms
    )


def best(points: Sequence[Point], limits: SearchLimits) -> Point | None:
    """The fastest point within the limits; among equally fast ones the smallest."""
    allowed = [point for point in points if limits.met_by(point)]
    if not allowed:
        return None
    fastest = min(point.ms for point in allowed)
    return min((p for p in allowed if p.ms <= fastest * _SAME_TIME), key=lambda p: (p.size, p.lost))


def nearest(points: Sequence[Point], limits: SearchLimits) -> Point:
    """The point that is least beyond the limits."""
    return min(points, key=limits.excess)


def trained_beside(points: Sequence[Point], chosen: Point) -> str:
    """What the same data gave the dense model, as a sentence; empty if that says nothing new."""
    trained = [p for p in points if is_trained_dense(p.candidate)]
    if not trained or chosen.is_dense:
        return ""
    rival = min(trained, key=lambda point: point.lost)
    return (
        f"Dense, trained on the same data ({rival.name}): {rival.speedup:.2f}x dense fp32,"
        f" {rival.lost:+.2%} of the quality lost."
    )


def _beats(one: Point, other: Point) -> bool:
    mine, others = ((point.lost, point.ms, point.size) for point in (one, other))
    return mine != others and all(a <= b for a, b in zip(mine, others, strict=True))


@dataclass(frozen=True)
class ShrinkResult:
    """What a search found.

    Attributes:
        chosen: the point to take; the nearest one if nothing met the limits.
        met: whether it is within the limits.
        path: its artifact.
        work: folder of all candidates, where a stopped search goes on.
        quality_name: what quality is.
        dense_quality: of the dense model, on the data that nothing was chosen by.
        quality: of the chosen model, on the same data.
        points: everything measured, in the order of the search.
        forecasts: what masks were forecast to take and to break.
        skipped: what was not tried, and why.
        seconds: of the search.
        out_of_time: whether the budget ended before the ideas did.
        timed: what the milliseconds are of.
        left_out: what there was no time for.
        budget_seconds: that the search was given.
        cpu_seconds: of processors that it had.
        doubt: what else the machine did meanwhile; empty if it was quiet.
        long_texts: how the chosen decoder reads texts of the length that was asked for.
    """

    chosen: Point
    met: bool
    path: Path
    work: Path
    quality_name: str
    dense_quality: float
    quality: float
    points: tuple[Point, ...]
    forecasts: tuple[MaskForecast, ...]
    skipped: tuple[str, ...]
    seconds: float
    out_of_time: bool
    timed: str = ""
    left_out: tuple[str, ...] = ()
    budget_seconds: float = 0.0
    cpu_seconds: float = 0.0
    doubt: str = ""
    long_texts: LongTexts | None = None

    @property
    def num_pruned(self) -> int:
        """Pruned candidates that were measured."""
        return len({point.candidate for point in self.points if not point.is_dense})

    @property
    def stay_dense(self) -> bool:
        """Whether no pruned model was worth it."""
        return self.chosen.is_dense

    @property
    def front(self) -> list[Point]:
        """Points that no other one beats in everything."""
        return front(self.points)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return {
            **asdict(self),
            "path": str(self.path),
            "work": str(self.work),
            "stay_dense": self.stay_dense,
            "front": [point.name for point in self.front],
        }
