# SPDX-License-Identifier: Apache-2.0
"""The pruning methods that recipes and `gossamer.sparsify` know by name: one table, free of torch.

To add a method, write its solver and add a row here. The rules of a `prune` stage, the JSON schema,
help texts, `--dry-run` and the executor read this table.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal


@dataclass(frozen=True)
class PruningMethod:
    """One way to choose zeros, and the kept weights where it changes them.

    Attributes:
        name: as users write it.
        needs: what it looks at besides the weights: nothing, the inputs of layers, or the gradients
            of a loss.
        solver: `module:name` of what builds it, imported on first use; empty for a scorer, which
            only ranks weights.
        statistics: what is collected of a layer's inputs: their squares or their Gram matrix.
        settings: fields of a `prune` stage that belong to the method, with their defaults; a
            default of None means that the setting is off.
        solves_rows: whether it solves small systems for groups of rows, as `refit` does.
    """

    name: str
    needs: Literal["nothing", "inputs", "gradients"]
    solver: str = ""
    statistics: Literal["none", "squares", "gram"] = "none"
    settings: Mapping[str, Any] = field(default_factory=dict)
    solves_rows: bool = False

    def builder(self) -> Any:
        """The class or function that makes the solver from its settings."""
        module, _, name = self.solver.partition(":")
        return getattr(importlib.import_module(f"gossamer.pruning.{module}"), name)


_RECONSTRUCTION: Final = {"damping": 0.01, "match": "pruned"}
METHODS: Final[Mapping[str, PruningMethod]] = {
    row.name: row
    for row in (
        PruningMethod("magnitude", "nothing"),
        PruningMethod("random", "nothing"),
        PruningMethod("wanda", "inputs", "methods:wanda", "squares"),
        PruningMethod(
            "sparsegpt",
            "inputs",
            "solvers.sparsegpt:SparseGPT",
            "gram",
            {"damping": 0.01, "block": 128, "quantise": None, "match": "pruned"},
        ),
        PruningMethod(
            "admm",
            "inputs",
            "solvers.reconstruction:ADMM",
            "gram",
            _RECONSTRUCTION,
            solves_rows=True,
        ),
        PruningMethod(
            "exact-obs",
            "inputs",
            "solvers.reconstruction:ExactOBS",
            "gram",
            _RECONSTRUCTION,
            solves_rows=True,
        ),
        PruningMethod("taylor", "gradients", "gradients.passes:taylor"),
        PruningMethod("fisher", "gradients", "gradients.passes:fisher"),
        # Few gradients make a poorer Fisher matrix than many inputs make a Gram matrix.
        PruningMethod("obert", "gradients", "gradients.obert:OBERT", settings={"damping": 0.1}),
    )
}
# In the order in which faults are told.
METHOD_SETTINGS: Final = tuple(
    dict.fromkeys(name for row in METHODS.values() for name in row.settings)
)


def methods_with(setting: str) -> tuple[str, ...]:
    """Names of the methods that have the setting."""
    return tuple(row.name for row in METHODS.values() if setting in row.settings)


def methods_that_need(needs: str) -> tuple[str, ...]:
    """Names of the methods that look at "nothing", "inputs" or "gradients"."""
    return tuple(row.name for row in METHODS.values() if row.needs == needs)
