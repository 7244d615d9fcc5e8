# SPDX-License-Identifier: Apache-2.0
"""The records of a run as curves: over steps, and what was evaluated over minutes."""

from collections.abc import Mapping, Sequence
from typing import Any

from gossamer.report.charts import Curve

Records = Sequence[Mapping[str, Any]]

_CURVES = {
    "loss": "loss",
    "sparsity": "sparsity",
    "ms": "milliseconds of a step",
    "moe_load": "load of the fullest expert over the mean",
    "moe_entropy": "entropy of the experts' loads, 1 in balance",
    "moe_dropped": "part of tokens without a place",
}
_BYTES = "bytes of weights, gradients and optimizer state"
_NO_QUALITY = ("kind", "step", "minutes", "cpu_minutes", "sparsity", "flops")


def curves(records: Records) -> list[Curve]:
    """Quantities over steps, with the moment of compaction marked; qualities over minutes."""
    words = {"compaction": "compact", "growth": "grow"}
    marks = tuple((r["step"], words[r["kind"]]) for r in records if r["kind"] in words)
    made = [
        Curve(title, _points(records, "step", "step", name), marks)
        for name, title in _CURVES.items()
    ]
    made.append(Curve(_BYTES, _byte_points(records), marks))
    evaluated = [record for record in records if record["kind"] == "evaluation"]
    for name in dict.fromkeys(name for record in evaluated for name in record):
        if name not in _NO_QUALITY:
            title = name.replace("_", " ")
            points = _points(evaluated, "evaluation", "minutes", name)
            made.append(Curve(title, points, unit="min"))
            made.append(_over_compute(evaluated, name, [x for x, word in marks if word == "grow"]))
    return [curve for curve in made if len({y for _, y in curve.points}) > 1]


def _over_compute(evaluated: Records, name: str, grown: Sequence[float]) -> Curve:
    """A quality over operations, with growths marked; empty for runs that do not count them."""
    counted = [r for r in evaluated if "flops" in r and isinstance(r.get(name), int | float)]
    done = [max((r["flops"] for r in counted if r["step"] <= x), default=0.0) for x in grown]
    return Curve(
        f"{name.replace('_', ' ')} over compute",
        tuple((r["flops"] / 1e12, r[name]) for r in counted),
        tuple((flops / 1e12, "grow") for flops in done),
        unit="TFLOP",
    )


def _points(records: Records, kind: str, x: str, y: str) -> tuple[tuple[float, float], ...]:
    """Where `y` is a number; NaN and Inf are told as text."""
    found = (record for record in records if record["kind"] == kind)
    return tuple((r[x], r[y]) for r in found if isinstance(r.get(y), int | float))


def _byte_points(records: Records) -> tuple[tuple[float, float], ...]:
    last = max((record["step"] for record in records), default=0)
    return tuple(
        (step, record[name])
        for record in records
        if record["kind"] == "compaction"
        for name, steps in (
            ("bytes_before", (0, record["step"])),
            ("bytes_after", (record["step"], last)),
        )
        for step in steps
    )
