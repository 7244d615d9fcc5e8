# SPDX-License-Identifier: Apache-2.0
"""Searches on graphs with labelled nodes: the quality is accuracy. Legend: N nodes.

The parts are those of the file: candidates are fitted to the training nodes, chosen by validation,
and the test is reported. Every call sees the whole graph; labels say which nodes count.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from gossamer.data.graphs import NodeData
from gossamer.data.tasks import tensors_digest
from gossamer.errors import InputError
from gossamer.nn.batch import Batch
from gossamer.pruning.calibration.flow import evaluating
from gossamer.pruning.gradients.losses import output_of
from gossamer.runs.calibration import Quality
from gossamer.runs.stages.recover_data import RecoverySamples
from gossamer.search.workloads.text import label_loss
from gossamer.search.workloads.workload import Measure, Workload, user_quality

# What cross entropy leaves out.
_NOT_COUNTED = -100


class _GraphBatch(Batch):
    """A call with features that no layer has seen: what it keeps for known ones is not timed."""

    def run(self, model: nn.Module) -> Any:
        """The logits of all nodes."""
        x, graph = self.arguments
        return model(x.view_as(x), graph)


def graph_workload(
    model: nn.Module,
    data: NodeData,
    *,
    choose: NodeData | None = None,
    report: NodeData | None = None,
    metric: Measure | None = None,
) -> Workload:
    """Accuracy of a model on the nodes of a graph."""
    if choose is not None or report is not None:
        raise InputError("shrink: parts of a graph are in its file; give no other ones.")
    for part in ("validation", "test"):
        if not len(data.parts[part]):
            raise InputError(
                f"shrink: the graph has no {part} nodes; candidates are chosen by validation, and"
                " the test is reported. Add both to its file."
            )
    batch = _batch(data, data.parts["train"])
    labels: Any = batch.labels
    return Workload(
        model=model,
        batches=lambda: [batch],
        samples=lambda: _samples(data),
        loss=label_loss,
        terms={"logits": 1.0, "hardness": 0.5},
        choosing=_quality(data, "validation", metric),
        reporting=_quality(data, "test", metric),
        timed=_GraphBatch((data.x, data.graph)),
        timed_text=f"{len(data.x)} nodes, {data.graph.num_edges} edges",
        tokens=len(data.x),
        digest=tensors_digest(data.x, data.edges, labels),
    )


def _batch(data: NodeData, nodes: torch.Tensor) -> Batch:
    labels = torch.full_like(data.y, _NOT_COUNTED)
    labels[nodes] = data.y[nodes]
    return _GraphBatch((data.x, data.graph), None, labels)


def _samples(data: NodeData) -> RecoverySamples:
    training = data.parts["train"]

    def make(numbers: Sequence[int]) -> Batch:
        return _batch(data, training[list(numbers)])

    return RecoverySamples(make, [1] * len(training), range(len(training)))


def _quality(data: NodeData, part: str, metric: Measure | None) -> Quality:
    where = f"{len(data.parts[part])} nodes, {part}"
    if metric is not None:
        return user_quality(metric, data.part(data.parts[part]), where)
    return Quality("accuracy (%)", False, partial(_accuracy, data, part), where, 100.0)


def _accuracy(data: NodeData, part: str, model: nn.Module) -> float:
    nodes = data.parts[part]
    with evaluating(model), torch.no_grad():
        logits = output_of(_GraphBatch((data.x, data.graph)).run(model))[nodes]
    return 100 * float((logits.argmax(-1) == data.y[nodes]).double().mean())
