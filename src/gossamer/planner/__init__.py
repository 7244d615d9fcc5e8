# SPDX-License-Identifier: Apache-2.0
"""What a training run would cost on a described cluster: bytes, time and traffic. Nothing is run.

`plan` tries every legal grid of ranks and keeps the best per state of training; `simulate` plays
one pipeline event by event; `load_cluster` reads a description and `calibrate` measures this
machine as one. Names are loaded on first use: a faulty cluster is refused without torch.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.planner.calibration import calibrate
    from gossamer.planner.cluster import cluster_text, load_cluster
    from gossamer.planner.explaining import FORECAST, plan_page, plan_table, reasons
    from gossamer.planner.planning import ClusterPlan, plan
    from gossamer.planner.schedules import SCHEDULES, PipelineSpec
    from gossamer.planner.simulation import Costs, simulate

__all__ = [
    "FORECAST",
    "SCHEDULES",
    "ClusterPlan",
    "Costs",
    "PipelineSpec",
    "calibrate",
    "cluster_text",
    "load_cluster",
    "plan",
    "plan_page",
    "plan_table",
    "reasons",
    "simulate",
]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "FORECAST": "explaining",
        "SCHEDULES": "schedules",
        "Costs": "simulation",
        "PipelineSpec": "schedules",
        "ClusterPlan": "planning",
        "calibrate": "calibration",
        "cluster_text": "cluster",
        "load_cluster": "cluster",
        "plan": "planning",
        "plan_page": "explaining",
        "plan_table": "explaining",
        "reasons": "explaining",
        "simulate": "simulation",
    },
)
