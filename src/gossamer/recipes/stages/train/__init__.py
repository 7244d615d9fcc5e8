# SPDX-License-Identifier: Apache-2.0
"""What a `train` stage says, section by section.

`Train` is the stage; its sections are `Architecture`, `OptimizerSettings`, `CheckpointSettings`,
`QuantizedTables`, `GraphSettings`, the `Mesh` of processes, and in `grow.py` how the model grows on
the way.
"""

from gossamer.recipes.stages.train.graph import GraphSettings
from gossamer.recipes.stages.train.mesh import Mesh
from gossamer.recipes.stages.train.tables import QuantizedTables
from gossamer.recipes.stages.train.train import (
    OPTIMIZER_OWNERS,
    Architecture,
    CheckpointSettings,
    OptimizerSettings,
    Train,
)

__all__ = [
    "OPTIMIZER_OWNERS",
    "Architecture",
    "CheckpointSettings",
    "GraphSettings",
    "Mesh",
    "OptimizerSettings",
    "QuantizedTables",
    "Train",
]
