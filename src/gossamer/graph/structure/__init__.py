# SPDX-License-Identifier: Apache-2.0
"""What a graph is: edges in both directions, checked once, with weights, loops and normalisations.

`Graph.of` takes what other libraries hold; `Graph.matrix` gives the matrix that a layer multiplies
with. `Propagation` is that matrix, ready to be called.
"""

from gossamer.graph.structure.graph import Graph
from gossamer.graph.structure.matrices import Propagation

__all__ = ["Graph", "Propagation"]
