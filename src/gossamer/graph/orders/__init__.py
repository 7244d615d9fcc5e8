# SPDX-License-Identifier: Apache-2.0
"""In which order a layer multiplies: features with the weight first, or with the graph first.

`choose` decides by the cost of products with the graph, measured if it is worth it; `OrderChoice`
says what was decided and why, `Detour` what the other order has more of. `KeptProducts` holds A x
as long as neither x nor the graph changed, `Squeezing` looks for zeros in the x of each step.
"""

from gossamer.graph.orders.choice import Detour, OrderChoice, choose
from gossamer.graph.orders.kept import KeptProducts
from gossamer.graph.orders.sparse_input import Squeezing, as_matrix, is_worth_it

__all__ = [
    "Detour",
    "KeptProducts",
    "OrderChoice",
    "Squeezing",
    "as_matrix",
    "choose",
    "is_worth_it",
]
