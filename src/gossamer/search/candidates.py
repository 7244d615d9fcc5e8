# SPDX-License-Identifier: Apache-2.0
"""What a search may try, cheapest first.

A candidate is a recipe; the model it makes is measured in every precision. Rungs of successive
halving: one-shot masks first, then short recovery of the best of them, then long recovery.
"""

from dataclasses import dataclass
from typing import Any

from gossamer.recipes.loader import make_recipe
from gossamer.recipes.schema import Recipe

DENSE = "dense"
SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Candidate:
    """A way to make a smaller model.

    Attributes:
        name: short, and the name of its folder.
        recipe: None leaves the model dense.
        after: the candidate whose idea it carries on, for the report.
    """

    name: str
    recipe: Recipe | None
    after: str | None = None


def one_shot(sparsity: float) -> Candidate:
    """SparseGPT that aims at the dense model's outputs."""
    name = f"oneshot-{sparsity * 100:.0f}"
    return Candidate(name, _recipe(name, [_prune(sparsity)]))


def slim(fraction: float) -> Candidate:
    """Heads and filters cut out until this fraction of the multiplications is left."""
    name = f"slim-{fraction * 100:.0f}"
    step = {"structured": {"budget": fraction, "multiple": 32}}
    return Candidate(name, _recipe(name, [step]))


def recovered(sparsity: float, steps: int, *, int8: bool, decoder: bool, after: str) -> Candidate:
    """The same mask, then training with the dense model as teacher."""
    name = f"recovered-{sparsity * 100:.0f}-{'int8' if int8 else 'fp32'}-{steps}"
    aim = {"logits": 1.0} if decoder else {"embeddings": 1.0, "similarity": 10.0}
    step = {"steps": steps, "freeze": "Embedding", "quantise": "int8" if int8 else None, **aim}
    return Candidate(name, _recipe(name, [_prune(sparsity), {"recover": step}]), after)


def _prune(sparsity: float) -> dict[str, Any]:
    return {"prune": {"method": "sparsegpt", "sparsity": sparsity, "match": "dense"}}


def _recipe(name: str, stages: list[dict[str, Any]]) -> Recipe:
    return make_recipe({"gossamer": 1, "stages": stages}, f"candidate {name}")
