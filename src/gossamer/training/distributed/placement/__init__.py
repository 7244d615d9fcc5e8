# SPDX-License-Identifier: Apache-2.0
"""A model on a mesh of processes: who holds which entries of which parameter, and the way back.

`ProcessMesh` is what a `Loop` uses instead of one process, `MeshSettings` says how. What one rank
has of a model is in `placement`, how gradients of replicas are added up in `gradients`.
"""

from gossamer.training.distributed.placement.mesh import MeshSettings, ProcessMesh

__all__ = ["MeshSettings", "ProcessMesh"]
