# SPDX-License-Identifier: Apache-2.0
"""A model on a mesh of processes: who holds which entries of which parameter, and the way back.

`ProcessMesh` is what a `Loop` uses instead of one process. `RankPlacement` is what one rank has of
a model; `replicated` and `average` add up gradients of replicas.
"""

from gossamer.training.distributed.placement.gradients import average, replicated
from gossamer.training.distributed.placement.mesh import MeshSettings, ProcessMesh
from gossamer.training.distributed.placement.placement import RankPlacement

__all__ = ["MeshSettings", "ProcessMesh", "RankPlacement", "average", "replicated"]
