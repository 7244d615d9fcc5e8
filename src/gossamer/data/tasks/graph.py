# SPDX-License-Identifier: Apache-2.0
"""Classes of the nodes of a graph, and pairs of nodes that go together.

Every number of a run follows from its seed: layers choose their order by rule instead of measuring
it, and what they keep from step to step is there before the first one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from gossamer.data.batches import RepeatedBatches, generator_of
from gossamer.data.graphs import (
    GraphRules,
    LinkBatches,
    LinkData,
    NodeBatches,
    NodeData,
    link_metrics,
    read_links,
    read_nodes,
)
from gossamer.data.graphs.rules import RULES_FILE
from gossamer.data.tasks.task import Task, tensors_digest
from gossamer.errors import InputError
from gossamer.graph import graph_layers
from gossamer.graph.large import NeighbourBatches
from gossamer.zoo.problems.graphs import partition_problem, taste_problem

GENERATED = "zoo:graph"


@dataclass(frozen=True)
class GraphTaskSettings:
    """What is learned of a graph, and how.

    Attributes:
        rules: how the file is taken.
        links: pairs are learned instead of classes.
        fanouts: neighbours that are drawn for each node, by hop; empty: a step sees all nodes.
        penalty: of the squares of the rows that a step of pairs looks up.
    """

    rules: GraphRules = field(default_factory=GraphRules)
    links: bool = False
    fanouts: Sequence[int] = ()
    penalty: float = 1e-4


def graph_task(data: str, batch: int, seed: int, settings: GraphTaskSettings) -> Task:
    """A graph from a file or folder, or a generated one: `zoo:graph`.

    Args:
        data: what `read_nodes` or `read_links` take, or "zoo:graph".
        batch: nodes with drawn neighbours, or pairs, in a batch.
        seed: of orders, neighbours, and items that pairs are compared with.
        settings: what is learned.
    """
    if settings.links:
        task = _link_task(_links(data, settings.rules), batch, seed, settings.penalty)
    else:
        task = node_task(_nodes(data, settings.rules), batch, seed, settings.fanouts)
    return replace(task, beside={RULES_FILE: settings.rules.content})


def node_task(data: NodeData, batch: int, seed: int, fanouts: Sequence[int] = ()) -> Task:
    """Classes of nodes; arguments as those of `graph_task`."""
    x, y, graph, train = data.x, data.y, data.graph, data.parts["train"]
    sampler: NeighbourBatches | None = None
    batches: Any = RepeatedBatches([(train, torch.zeros_like(train))])
    if fanouts:
        sampler = NeighbourBatches(graph, fanouts=fanouts, batch_size=batch, nodes=train, seed=seed)
        batches = NodeBatches(train, batch, seed)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nodes, numbers = batch
        if sampler is None:
            return cross_entropy(model(x, graph)[nodes].float(), y[nodes])
        found = sampler.around(nodes, int(numbers[0]))
        logits = model(x[found.nodes], found.graph)[: found.num_own]
        return cross_entropy(logits.float(), y[nodes])

    def measured(model: nn.Module, part: str) -> dict[str, float]:
        nodes = data.parts[part]
        with _keeping_nothing(model):
            logits = model(x, graph)[nodes].float()
        right = float((logits.argmax(-1) == y[nodes]).double().mean())
        return {"accuracy": right, "eval_loss": float(cross_entropy(logits, y[nodes]))}

    def adopt(model: nn.Module) -> None:
        width = getattr(model, "num_features", x.shape[1])
        if width != x.shape[1]:
            raise InputError(
                f"--model: takes {width} features of a node; the data have {x.shape[1]}."
            )
        _by_rule(model)
        if sampler is None:
            # Once: products of features that stay are there for the first step as for all others.
            model.eval()
            with torch.no_grad():
                model(x, graph)
            model.train()

    return Task(
        name="graph",
        batches=batches,
        loss=loss,
        evaluate=_on("validation", data.parts, measured),
        tokens=len(x) if sampler is None else batch,
        sizes={"features": x.shape[1], "classes": data.num_classes},
        digest=tensors_digest(
            x, y, data.edges, *([] if data.weight is None else [data.weight]), *data.parts.values()
        ),
        report=_reported(data.parts, measured),
        adopt=adopt,
        notes=_notes(data.parts, "nodes"),
    )


def _link_task(data: LinkData, batch: int, seed: int, penalty: float) -> Task:
    """Pairs, by the difference of an item of a user and another one (BPR, arXiv 1205.2618)."""
    graph = data.graph

    def loss(model: nn.Module, triples: Tensor) -> Tensor:
        users, items, others = triples.T
        vectors = model(graph).float()
        of_users = vectors[users]
        gap = (of_users * (vectors[items] - vectors[others])).sum(1)
        lost = softplus(-gap).mean()
        if not penalty:
            return lost
        return lost + penalty * _squares(model, triples) / (2 * len(triples))

    def measured(model: nn.Module, part: str) -> dict[str, float]:
        return link_metrics(model(graph).float(), data, part)

    def adopt(model: nn.Module) -> None:
        count = getattr(model, "num_nodes", data.num_nodes)
        if count != data.num_nodes:
            raise InputError(f"--model: has {count} nodes; the data have {data.num_nodes}.")
        _by_rule(model)

    return Task(
        name="graph",
        batches=LinkBatches(data, batch, seed),
        loss=loss,
        evaluate=_on("validation", data.parts, measured),
        tokens=batch,
        sizes={"nodes": data.num_nodes},
        digest=tensors_digest(torch.tensor([data.first_item]), *data.parts.values()),
        report=_reported(data.parts, measured),
        adopt=adopt,
        notes=_notes(data.parts, "pairs"),
    )


def _squares(model: nn.Module, triples: Tensor) -> Tensor:
    """Of the rows that a step looks up, where the model has rows."""
    inner: Any = getattr(model, "module", model)  # DDP
    rows = getattr(inner, "rows", None)
    if not isinstance(rows, nn.Module):
        return torch.zeros(())
    found: Tensor = rows(triples.flatten())
    return found.float().square().sum()


def _by_rule(model: nn.Module) -> None:
    for layer in graph_layers(model):
        layer.measures = False


@contextmanager
def _keeping_nothing(model: nn.Module) -> Iterator[None]:
    """A measurement neither uses nor changes what layers keep for training."""
    layers = [(layer, layer.keeps) for layer in graph_layers(model)]
    try:
        for layer, _ in layers:
            layer.keeps = False
        yield
    finally:
        for layer, keeps in layers:
            layer.keeps = keeps


_Measure = Callable[[nn.Module, str], dict[str, float]]


def _on(part: str, parts: dict[str, Tensor], measured: _Measure) -> Any:
    return (lambda model: measured(model, part)) if len(parts[part]) else None


def _reported(parts: dict[str, Tensor], measured: _Measure) -> Any:
    def report(model: nn.Module) -> dict[str, float]:
        found = measured(model, "test")
        return {f"test_{name.removeprefix('eval_')}": value for name, value in found.items()}

    return report if len(parts["test"]) else None


def _notes(parts: dict[str, Tensor], what: str) -> tuple[str, ...]:
    counts = ", ".join(f"{len(found)} {part}" for part, found in parts.items())
    missing = [part for part in ("validation", "test") if not len(parts[part])]
    none = f" Nothing is measured on {' or '.join(missing)}." if missing else ""
    return (f"Graph: {counts} {what}.{none}",)


def _nodes(data: str, rules: GraphRules) -> NodeData:
    if data != GENERATED:
        return read_nodes(Path(data), rules)
    found = partition_problem(generator_of(0, 600))
    return NodeData.of(found.edges, found.x, found.y, rules)


def _links(data: str, rules: GraphRules) -> LinkData:
    if data != GENERATED:
        return read_links(Path(data), rules)
    found = taste_problem(generator_of(0, 300))
    pairs = found.pairs + torch.tensor([0, found.num_users])
    return LinkData.of(pairs, found.num_users + found.num_items, found.num_users, rules)
