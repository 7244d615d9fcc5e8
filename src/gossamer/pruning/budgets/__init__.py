# SPDX-License-Identifier: Apache-2.0
"""How a target density is shared among layers: by rule, or by what was measured on data.

`BUDGETS` holds the budgets by name. `budget_layers` collects what a budget must know of the layers;
the budget then gives each of them a whole number of kept weights.
"""

from gossamer.pruning.budgets.measures import budget_layers, pattern_errors
from gossamer.pruning.budgets.table import BUDGETS, Budget, BudgetLayer

__all__ = [
    "BUDGETS",
    "Budget",
    "BudgetLayer",
    "budget_layers",
    "pattern_errors",
]
