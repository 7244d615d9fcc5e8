# SPDX-License-Identifier: Apache-2.0
"""How edges and features of a file are taken, and how it is split if it does not say.

The rules are kept beside the model, so that other data are taken the same way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

from gossamer.data.batches import generator_of
from gossamer.errors import ArtifactError, InputError
from gossamer.io.safe_files.documents import canonical_json, parse_json

__all__ = ["RULES_FILE", "GraphRules", "read_rules"]

RULES_FILE = "graph.json"
PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class GraphRules:
    """What a file leaves open.

    Attributes:
        directed: edges lead one way; else each leads both ways, however often it is listed.
        normalise: rows: features of a node are divided by their sum; none: as they are.
        validation: part that the best state is chosen by, where the file has no parts.
        test: part that is reported.
    """

    directed: bool = False
    normalise: Literal["none", "rows"] = "none"
    validation: float = 0.1
    test: float = 0.1

    @property
    def content(self) -> bytes:
        """For the file beside a model."""
        return canonical_json(asdict(self))

    def split(self, members: Tensor) -> dict[str, Tensor]:
        """Members by part; the same ones whatever a run's seed is."""
        count = len(members)
        held = [round(count * part) for part in (self.validation, self.test)]
        if count - sum(held) < 1:
            raise InputError(
                f"data: {count} labelled nodes or pairs leave nothing to train on, with"
                f" {self.validation:g} held out for validation and {self.test:g} for the test."
            )
        order = members[torch.randperm(count, generator=generator_of(0, count))]
        cuts = [count - sum(held), *held]
        return dict(zip(PARTS, order.split(cuts), strict=True))  # type: ignore[no-untyped-call]


def read_rules(content: bytes, where: str) -> GraphRules:
    """The rules that the data of a model were read by, from the file beside it."""
    found = parse_json(content, where)
    kinds = {"directed": bool, "normalise": str, "validation": float, "test": float}
    if not isinstance(found, dict) or {n: type(v) for n, v in found.items()} != kinds:
        raise ArtifactError(f"{where}: {RULES_FILE} does not hold the rules of a graph.")
    return GraphRules(**found)


def both_ways(edges: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Edges [2, E] with the reverse of each one whose reverse is not listed."""
    sources, targets = edges
    size = int(edges.max()) + 1 if edges.numel() else 1
    ahead, back = sources * size + targets, targets * size + sources
    lone = ~torch.isin(back, ahead)
    joined = torch.cat([edges, edges.flip(0)[:, lone]], dim=1)
    return joined, None if weight is None else torch.cat([weight, weight[lone]])


def check_parts(parts: Mapping[str, Sequence[int] | Tensor], what: str, where: str) -> None:
    """Nothing is in two parts, and there is something to train on."""
    if not len(parts["train"]):
        raise InputError(f"{where}: there are no {what} to train on.")
    for first, second in (("train", "validation"), ("train", "test"), ("validation", "test")):
        both = set(map(int, parts[first])) & set(map(int, parts[second]))
        if both:
            raise InputError(
                f"{where}: {what} number {min(both)} is in {first} and in {second}, and so are"
                f" {len(both) - 1} more. What is measured on must not be trained on."
            )
