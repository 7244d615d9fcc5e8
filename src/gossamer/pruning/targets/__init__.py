# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model are pruned.

Start with `find_targets`: users name layers by rules (a class name, a glob, a regular expression),
and get one `Target` per weight, or an error that says why a layer cannot be pruned.
"""

from gossamer.pruning.targets.find import Target, find_targets
from gossamer.pruning.targets.rules import Rules, match

__all__ = ["Rules", "Target", "find_targets", "match"]
