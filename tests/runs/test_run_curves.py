# SPDX-License-Identifier: Apache-2.0
"""Records of a run as curves."""

from gossamer.runs.curves import curves


def evaluation(step, minutes, **numbers):
    return {"kind": "evaluation", "step": step, "minutes": minutes, "cpu_minutes": 0.1, **numbers}


def test_qualities_are_drawn_over_minutes_and_losses_over_steps():
    records = [
        evaluation(0, 0.0, sparsity=0.0, held_out_loss=2.0, score=80.0),
        {"kind": "step", "step": 10, "loss": 1.0, "sparsity": 0.0, "ms": 3.0},
        {"kind": "step", "step": 20, "loss": "nan", "sparsity": 0.0, "ms": 3.0},
        {"kind": "step", "step": 30, "loss": 0.5, "sparsity": 0.0, "ms": 4.0},
        evaluation(30, 1.5, sparsity=0.0, held_out_loss=1.0, score=85.0),
    ]
    found = {curve.title: curve for curve in curves(records)}
    assert list(found) == ["loss", "milliseconds of a step", "held out loss", "score"]
    assert found["loss"].points == ((10, 1.0), (30, 0.5))
    assert found["loss"].unit == "step"
    assert found["score"].points == ((0.0, 80.0), (1.5, 85.0))
    assert found["score"].unit == "min"


def test_nothing_is_drawn_of_nothing():
    assert curves([]) == []
    assert curves([evaluation(5, 1.0, score=3.0)]) == []


def test_loads_of_experts_are_curves():
    numbers = {"moe_load": 3.0, "moe_entropy": 0.5, "moe_dropped": 0.25}
    records = [
        {"kind": "step", "step": step, **{name: value / step for name, value in numbers.items()}}
        for step in (1, 2, 3)
    ]
    found = {curve.title: curve.points for curve in curves(records)}
    assert found["load of the fullest expert over the mean"] == ((1, 3.0), (2, 1.5), (3, 1.0))
    assert len(found) == 3
