# SPDX-License-Identifier: Apache-2.0
"""A pruning run as a whole: what is asked, what it would take, and the way to the artifact.

`run_prune` carries out a `PruneRequest`, `plan_prune` says beforehand what it would keep, need and
take. Both are what `gossamer.prune` and the command of that name call.
"""

from gossamer.runs.pruning.plan import StagePlan, plan_prune
from gossamer.runs.pruning.request import PruneRequest, RecipeLike, chosen_recipe
from gossamer.runs.pruning.run import run_prune

__all__ = [
    "PruneRequest",
    "RecipeLike",
    "StagePlan",
    "chosen_recipe",
    "plan_prune",
    "run_prune",
]
