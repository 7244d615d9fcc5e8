# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch Geometric, with their convolutions computed here.

PyG is not imported: its layers are known by the names of their classes and modules.
"""

from gossamer.graph.pyg.accelerating import Accelerated, accelerate
from gossamer.graph.pyg.between import watch_between

__all__ = ["Accelerated", "accelerate", "watch_between"]
