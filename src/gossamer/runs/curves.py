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
_NO_QUALITY = ("kind", "step", "minutes", "cpu_minutes", "sparsity", "flops")


def curves(records: Records) -> list[Curve]:
    """Quantities over steps, with the moment of compaction marked; qualities over minutes."""
    words = {"compaction": "compact", "growth": "grow"}
    marks = tuple((r["step"], words[r["kind"]]) for r in records if r["kind"] in words)
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
        computed = [(r["flops"] / 1e12, r[name]) for r in evaluated if name in r and "flops" in r]
        grown = [r["step"] for r in records if r["kind"] == "growth"]
        at = tuple((_flops_at(evaluated, step) / 1e12, "grow") for step in grown)
        title = f"{name.replace('_', ' ')} over compute"
        made.append(Curve(title, _numbers(computed), at, unit="TFLOP"))
    return [curve for curve in made if len({y for _, y in curve.points}) > 1]


def _flops_at(evaluated: Records, step: int) -> float:
    """Compute of the last evaluation up to a step."""
    return max((r["flops"] for r in evaluated if r["step"] <= step and "flops" in r), default=0.0)


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
