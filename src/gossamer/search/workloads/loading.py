# SPDX-License-Identifier: Apache-2.0
"""From what a user gives as data to a workload: text, images, click logs, graphs or batches."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from gossamer.data.clicks import ClickRows
from gossamer.data.files import ImageSet, Texts, check_scores, read_images, read_samples
from gossamer.data.graphs import GraphRules, NodeData
from gossamer.data.graphs.nodes import holds_graph, read_nodes
from gossamer.errors import InputError
from gossamer.search.workloads.batches import batch_workload
from gossamer.search.workloads.clicks import click_workload
from gossamer.search.workloads.graphs import graph_workload
from gossamer.search.workloads.images import image_workload
from gossamer.search.workloads.text import split_texts, text_workload
from gossamer.search.workloads.workload import Workload

_IMAGES = ".npz"


def load_workload(
    model: nn.Module,
    tokenizer: Any,
    data: Any,
    *,
    choose: Any = None,
    report: Any = None,
    metric: Callable[[nn.Module, Any], float] | None = None,
) -> Workload:
    """Files are read; all three parts must be of one kind."""
    first: Any
    first, choose, report = (
        None if part is None else read_part(part) for part in (data, choose, report)
    )
    # One kind: what the first part is, the others are.
    check_parts(first, choose, report)
    make: Callable[..., Workload] = batch_workload
    if isinstance(first, Texts):
        make = partial(text_workload, tokenizer=tokenizer)
    elif isinstance(first, ImageSet):
        make = image_workload
    elif isinstance(first, ClickRows):
        make = click_workload
    elif isinstance(first, NodeData):
        make = graph_workload
    return make(model, first, choose=choose, report=report, metric=metric)


def check_parts(data: Any, choose: Any = None, report: Any = None) -> None:
    """What can be wrong with data that were read, whatever the model is; InputError says it."""
    kinds = {type(part) for part in (data, choose, report) if part is not None}
    if len(kinds) != 1:
        raise InputError(
            "shrink: the data to fit, to choose by and to report must be of one kind, got"
            f" {', '.join(sorted(kind.__name__ for kind in kinds))}."
        )
    if isinstance(data, Texts):
        for part in split_texts(data, choose, report)[1:]:
            check_scores(part)


def read_part(data: Any) -> Texts | ImageSet | ClickRows | NodeData | list[Any]:
    """What a file holds; texts, images, rows, graphs and batches stay what they are."""
    if isinstance(data, Texts | ImageSet | ClickRows | NodeData):
        return data
    if isinstance(data, str | Path):
        path = Path(data)
        if holds_graph(path):
            return read_nodes(path, GraphRules())
        return read_images(path) if path.suffix == _IMAGES else read_samples(path, labelled=True)
    if isinstance(data, Sequence):
        return list(data)
    raise InputError(
        f"shrink: data must be a file or a list of batches, got {type(data).__name__}."
    )
