# SPDX-License-Identifier: Apache-2.0
"""What a `train` stage says of a graph: what is learned of it, and how its file is taken."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gossamer.recipes.base import Found, Settings, as_list
from gossamer.training.distributed import AXES

NODE_MODELS = ("gcn", "sage", "gin", "gat", "gatv2")
LINK_MODELS = ("lightgcn",)


class GraphSplit(Settings):
    """What is held out, where the file does not say."""

    validation: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Part that the best state is chosen by."""
    test: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Part that is reported at the end."""


class GraphSettings(Settings):
    """What is learned of a graph, and how its file is taken."""

    predict: Literal["nodes", "links"] = "nodes"
    """nodes: their classes; links: pairs that go together, such as users and items."""
    fanouts: Annotated[
        tuple[Annotated[int, Field(ge=1, le=2**20)], ...],
        BeforeValidator(as_list),
        Field(max_length=64),
    ] = ()
    """nodes: neighbours drawn for each node, by hop, such as [10, 5]; empty: all of them."""
    directed: bool = False
    """Edges lead one way; false: both ways."""
    normalise: Literal["none", "rows"] = "none"
    """rows: features of a node are divided by their sum."""
    split: GraphSplit = GraphSplit()
    penalty: float = Field(default=1e-4, ge=0.0, le=1e3)
    """links: of the squares of the rows that a step looks up."""


def graph_faults(train: Mapping[str, Any]) -> Found:
    """Settings of a graph that do not go together, or that are given to another task."""
    task, data = train.get("task"), train.get("data")
    graph = data.get("graph") if isinstance(data, Mapping) else None
    if task != "graph":
        if isinstance(graph, Mapping):
            yield "data.graph", f"belongs to task graph, not to {task}."
        return
    graph = graph if isinstance(graph, Mapping) else {}
    links, fanouts = graph.get("predict", "nodes") == "links", graph.get("fanouts")
    yield from _model_faults(train.get("model"), links, fanouts)
    if links and fanouts:
        yield "data.graph.fanouts", "belongs to predict: nodes; pairs see the whole graph."
    if train.get("grow"):
        yield "grow", "models of graphs do not grow."
    mesh = train.get("mesh")
    if not isinstance(mesh, Mapping):
        return
    for axis in AXES:
        if axis != "data" and mesh.get(axis, 1) != 1:
            yield f"mesh.{axis}", "graphs are shared out by their nodes: use data."
    if mesh.get("data", 1) != 1 and not links and not fanouts:
        yield (
            "mesh.data",
            "a step on the whole graph cannot be shared out; draw neighbours: data: {graph:"
            " {fanouts: [10, 5]}}.",
        )


def _model_faults(model: Any, links: bool, fanouts: Any) -> Found:
    if not isinstance(model, Mapping):
        return
    name, fitting = model.get("name"), LINK_MODELS if links else NODE_MODELS
    if name in (*NODE_MODELS, *LINK_MODELS) and name not in fitting:
        what = "links" if links else "nodes"
        yield "model.name", f"{name} does not predict {what}; expected {', '.join(fitting)}."
    layers = model.get("layers", 2)
    if isinstance(fanouts, list | tuple) and fanouts and len(fanouts) != layers:
        yield "data.graph.fanouts", f"names {len(fanouts)} hops; the model has {layers} layers."
