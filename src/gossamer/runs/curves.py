# SPDX-License-Identifier: Apache-2.0
"""The records of a run as curves: over steps, and what was evaluated over minutes."""

from collections.abc import Mapping, Sequence
from typing import Any

from gossamer.report.charts import Curve

Records = Sequence[Mapping[str, Any]]

_CURVES = (
    ("step", "loss", "loss"),
    ("step", "sparsity", "sparsity"),
    ("step", "ms", "milliseconds of a step"),
    ("compaction", "bytes", "bytes of weights, gradients and optimizer state"),
)
_NO_QUALITY = ("kind", "step", "minutes", "cpu_minutes", "sparsity")


def curves(records: Records) -> list[Curve]:
    """Quantities over steps, with the moment of compaction marked; qualities over minutes."""
    marks = tuple((r["step"], "compact") for r in records if r["kind"] == "compaction")
    made = []
    for kind, name, title in _CURVES:
        if name == "bytes":
            points = _byte_points(records)
        else:
            points = [(r["step"], r[name]) for r in records if r["kind"] == kind and name in r]
        made.append(Curve(title, _numbers(points), marks))
    evaluated = [record for record in records if record["kind"] == "evaluation"]
    names = dict.fromkeys(name for record in evaluated for name in record)
    for name in (name for name in names if name not in _NO_QUALITY):
        points = [(r["minutes"], r[name]) for r in evaluated if name in r]
        made.append(Curve(name.replace("_", " "), _numbers(points), unit="min"))
    return [curve for curve in made if len({y for _, y in curve.points}) > 1]


def _numbers(points: Sequence[tuple[Any, Any]]) -> tuple[tuple[float, float], ...]:
    """NaN and Inf are told as text."""
    return tuple((x, y) for x, y in points if isinstance(y, int | float))


def _byte_points(records: Records) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    last = max((r["step"] for r in records), default=0)
    for record in records:
        if record["kind"] == "compaction":
            step = record["step"]
            points += [(0, record["bytes_before"]), (step, record["bytes_before"])]
            points += [(step, record["bytes_after"]), (last, record["bytes_after"])]
    return points
