# SPDX-License-Identifier: Apache-2.0
"""What a training run would cost on a described cluster: bytes, time and traffic. Nothing is run.

`plan` tries every legal grid of ranks and keeps the best per state of training, as a `ClusterPlan`.
`load_cluster` reads a description, `calibrate` measures this machine as one, and `cluster_text`
writes it. `simulate` plays one pipeline, a `PipelineSpec` with its `Costs`, event by event.

`explaining` shows a plan, `pipeline_orders` has the orders of work, `staged` plans growth in
stages. Names are loaded on first use: a faulty cluster is refused without torch.
"""

from typing import TYPE_CHECKING

from gossamer.lazy_door import lazy_door

if TYPE_CHECKING:
    from gossamer.planner.calibration import calibrate
    from gossamer.planner.cluster import cluster_text, load_cluster
    from gossamer.planner.pipeline_orders import PipelineSpec
    from gossamer.planner.pipeline_simulation import Costs, simulate
    from gossamer.planner.planning import ClusterPlan, plan

__all__ = [
    "ClusterPlan",
    "Costs",
    "PipelineSpec",
    "calibrate",
    "cluster_text",
    "load_cluster",
    "plan",
    "simulate",
]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "ClusterPlan": "planning",
        "Costs": "pipeline_simulation",
        "PipelineSpec": "pipeline_orders",
        "calibrate": "calibration",
        "cluster_text": "cluster",
        "load_cluster": "cluster",
        "plan": "planning",
        "simulate": "pipeline_simulation",
    },
)
