# SPDX-License-Identifier: Apache-2.0
"""One convolution of PyG becomes the layer that computes the same."""

from collections.abc import Callable
from typing import Any

from torch import nn

from gossamer.graph.layers import GAT, GCN, GIN, SAGE, SGC, GATv2, LightGCN


class Unsupported(Exception):
    """Why a convolution stays as it is."""


def is_convolution(module: nn.Module) -> bool:
    """Whether it is a layer of PyG that passes messages."""
    names = {base.__name__ for base in type(module).__mro__ if _is_pyg(base)}
    return "MessagePassing" in names


def _is_pyg(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "torch_geometric"


def _need(is_so: bool, why: str) -> None:
    if not is_so:
        raise Unsupported(why)


def _check(conv: Any) -> None:
    """What all of them must have."""
    _need(_is_pyg(type(conv)), f"{type(conv).__name__} is a class of its own")
    _need(conv.flow == "source_to_target", f"its flow is {conv.flow}")
    _need(not getattr(conv, "decomposed_layers", 1) > 1, "it is decomposed")
    _need(not _has_hooks(conv), "somebody watches it with hooks")
    _need(not getattr(conv, "_explain", False), "it is being explained")


def _has_hooks(conv: Any) -> bool:
    return any(table for name, table in vars(conv).items() if name.endswith("_hooks"))


def _linear(lin: Any) -> nn.Module:
    """An ordinary linear layer with the parameters of PyG's."""
    if lin is None or not _is_pyg(type(lin)):
        return lin  # type: ignore[no-any-return]
    _need(
        not isinstance(lin.weight, nn.parameter.UninitializedParameter),
        "its sizes are not known yet: call the model once, then accelerate it",
    )
    made = nn.Linear(lin.weight.shape[1], lin.weight.shape[0], bias=False, device="meta")
    made.weight = lin.weight
    made.bias = lin.bias
    return made


def _sum_of(conv: Any, *allowed: str) -> str:
    name = conv.aggr if isinstance(conv.aggr, str) else type(conv.aggr).__name__
    _need(name in allowed, f"its aggregation is {name}")
    return name


def _gcn(conv: Any) -> GCN:
    _check(conv)
    _sum_of(conv, "add", "sum")
    made = GCN(
        1,
        1,
        bias=False,
        loops=conv.add_self_loops,
        fill=2.0 if conv.improved else 1.0,
        normalise=conv.normalize,
    )
    made.lin, made.bias = _linear(conv.lin), conv.bias
    return made


def _sage(conv: Any) -> SAGE:
    _check(conv)
    aggregate = _sum_of(conv, "mean", "add", "sum", "max")
    made = SAGE(1, 1, aggregate="sum" if aggregate == "add" else aggregate)
    made.lin_l = _linear(conv.lin_l)
    made.lin_r = _linear(conv.lin_r) if conv.root_weight else None
    made.lin = _linear(conv.lin) if conv.project else None
    made.normalise = conv.normalize
    return made


def _gin(conv: Any) -> GIN:
    _check(conv)
    _sum_of(conv, "add", "sum")
    made = GIN(conv.nn)
    if isinstance(conv.eps, nn.Parameter):
        del made.eps
        made.eps = conv.eps
    else:
        made.register_buffer("eps", conv.eps)
    return made


def _attends(conv: Any) -> None:
    _check(conv)
    _sum_of(conv, "add", "sum")


def _gat(conv: Any) -> GAT:
    _attends(conv)
    _need(conv.lin is not None, "its sources and targets have transforms of their own")
    has_edges = conv.edge_dim is not None
    _need(
        not has_edges or not conv.add_self_loops or conv.fill_value == "mean",
        "its loops have features other than the mean of edges (fill_value)",
    )
    made = GAT(1, conv.out_channels, conv.heads, bias=False)
    made.lin = _linear(conv.lin)
    made.att_src, made.att_dst = conv.att_src, conv.att_dst
    made.slope, made.dropout = conv.negative_slope, conv.dropout
    made.concat, made.loops, made.bias = conv.concat, conv.add_self_loops, conv.bias
    made.res = _linear(conv.res)
    if has_edges:
        made.lin_edge, made.att_edge = _linear(conv.lin_edge), conv.att_edge
    return made


def _gatv2(conv: Any) -> GATv2:
    _attends(conv)
    _need(conv.edge_dim is None, "it has features of edges (edge_dim)")
    made = GATv2(1, conv.out_channels, conv.heads, bias=False)
    made.lin_l = _linear(conv.lin_l)
    made.lin_r = made.lin_l if conv.lin_r is conv.lin_l else _linear(conv.lin_r)
    made.att, made.slope, made.dropout = conv.att, conv.negative_slope, conv.dropout
    made.concat, made.loops, made.bias = conv.concat, conv.add_self_loops, conv.bias
    made.res = _linear(conv.res)
    return made


def _sgc(conv: Any) -> SGC:
    _check(conv)
    _sum_of(conv, "add", "sum")
    _need(not conv.cached, "it keeps features of its own (cached): make it with cached=False")
    made = SGC(1, 1, conv.K, loops=conv.add_self_loops)
    made.lin = _linear(conv.lin)
    return made


def _lgconv(conv: Any) -> LightGCN:
    _check(conv)
    _sum_of(conv, "add", "sum")
    return LightGCN(1, combine="last", normalise=conv.normalize)


CONVERTERS: dict[str, Callable[[Any], nn.Module]] = {
    "GCNConv": _gcn,
    "SAGEConv": _sage,
    "GINConv": _gin,
    "GATConv": _gat,
    "GATv2Conv": _gatv2,
    "SGConv": _sgc,
    "LGConv": _lgconv,
}
