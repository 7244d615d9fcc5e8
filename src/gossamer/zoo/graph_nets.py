# SPDX-License-Identifier: Apache-2.0
"""Models of graphs: classes of nodes (`GraphNet`), and who goes with what (`Recommender`).

Legend: N nodes, F features, C classes, D width.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from gossamer.errors import InputError
from gossamer.graph import GAT, GCN, GIN, SAGE
from gossamer.graph.layers import GATv2, LightGCN
from gossamer.zoo.arguments import MAX_LAYERS, ZooArgs, check_choice, check_size

__all__ = ["GraphNet", "Recommender"]

_STD = 0.1  # of a recommender's rows at the start, as published


def _gin(inputs: int, outputs: int) -> GIN:
    return GIN(nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs)))


_PLAIN: dict[str, Callable[[int, int], nn.Module]] = {"gcn": GCN, "sage": SAGE, "gin": _gin}
_ATTENTION: dict[str, Any] = {"gat": GAT, "gatv2": GATv2}


class GraphNet(nn.Module):
    """Layers of one kind, with dropout before each and an activation between them.

    Args:
        num_features: F.
        num_classes: C.
        layer: "gcn", "sage", "gin", "gat" or "gatv2".
        width: D, of all layers but the last; heads share it.
        num_layers: how many hops a node sees.
        heads: of attention in all layers but the last, which has one.
        dropout: of features and of attention, while training.
    """

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        layer: str = "gcn",
        width: int = 64,
        num_layers: int = 2,
        heads: int = 1,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.num_features = check_size("GraphNet: num_features", num_features)
        self.num_classes = check_size("GraphNet: num_classes", num_classes)
        self.layer = check_choice("GraphNet: layer", layer, [*_PLAIN, *_ATTENTION])
        self.width = check_size("GraphNet: width", width)
        self.num_layers = check_size("GraphNet: num_layers", num_layers, high=MAX_LAYERS)
        self.heads = check_size("GraphNet: heads", heads)
        if width % heads:
            raise InputError(f"GraphNet: width {width} must be divisible by heads {heads}.")
        if not isinstance(dropout, float | int) or not 0 <= dropout < 1:
            raise InputError(f"GraphNet: dropout must be in [0, 1), got {dropout!r}.")
        self.dropout = float(dropout)
        sizes = [num_features, *[width] * (num_layers - 1), num_classes]
        last = num_layers - 1
        self.layers = nn.ModuleList(
            self._layer(sizes[i], sizes[i + 1], 1 if i == last else heads)
            for i in range(num_layers)
        )

    def _layer(self, inputs: int, outputs: int, heads: int) -> nn.Module:
        if self.layer in _PLAIN:
            return _PLAIN[self.layer](inputs, outputs)
        made: nn.Module = _ATTENTION[self.layer](
            inputs, outputs // heads, heads, dropout=self.dropout
        )
        return made

    def zoo_args(self) -> ZooArgs:
        """The arguments that build this model again."""
        names = ("num_features", "num_classes", "layer", "width", "num_layers", "heads", "dropout")
        return {name: getattr(self, name) for name in names}

    def forward(self, x_NF: torch.Tensor, graph: Any) -> torch.Tensor:
        """Logits [N, C].

        Args:
            x_NF: features of nodes.
            graph: a `gossamer.graph.Graph`, or what `Graph.of` takes.
        """
        x, activation = x_NF, F.elu if self.layer in _ATTENTION else F.relu
        for number, layer in enumerate(self.layers):
            if number:
                x = activation(x)
            if self.training and self.dropout:
                x = F.dropout(x, self.dropout)
            x = layer(x, graph)
        return x


class Recommender(nn.Module):
    """LightGCN: a row for each node, and the mean of it and of what its neighbours hold.

    How well two nodes go together is the dot product of their vectors (arXiv 2002.02126).

    Args:
        num_nodes: N, users first, then items.
        width: D.
        hops: how far rows travel.
    """

    def __init__(self, num_nodes: int, *, width: int = 64, hops: int = 3) -> None:
        super().__init__()
        self.num_nodes = check_size("Recommender: num_nodes", num_nodes)
        self.width = check_size("Recommender: width", width)
        self.hops = check_size("Recommender: hops", hops, low=0, high=MAX_LAYERS)
        self.rows = nn.Embedding(num_nodes, width)
        nn.init.normal_(self.rows.weight, std=_STD)
        self.spread = LightGCN(hops)

    def zoo_args(self) -> ZooArgs:
        """The arguments that build this model again."""
        return {"num_nodes": self.num_nodes, "width": self.width, "hops": self.hops}

    def forward(self, graph: Any) -> torch.Tensor:
        """Vectors of all nodes [N, D].

        Args:
            graph: known pairs in both directions: a `gossamer.graph.Graph`, or what it is made of.
        """
        vectors: torch.Tensor = self.spread(self.rows(torch.arange(self.num_nodes)), graph)
        return vectors
