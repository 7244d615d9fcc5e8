# SPDX-License-Identifier: Apache-2.0
"""Graph attention: GAT (arXiv 1710.10903) and GATv2 (arXiv 2105.14491).

Softmax and product run in one pass over the edges; what is kept for the backward pass is one weight
per edge and head.

Legend: N sources, M targets, E edges, H heads, C features of a head.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.errors import InputError
from gossamer.graph.layer import GraphLayer
from gossamer.graph.layers.neighbours import Features, sides
from gossamer.graph.orders import OrderChoice
from gossamer.graph.structure import Propagation
from gossamer.nn.layer_weights import plain_weight
from gossamer.ops.spmm import attention, pair_logits
from gossamer.ops.tall import tall_linear

_FIXED = OrderChoice(
    "transform first", "weights of edges come from transformed features: order is fixed"
)


class _Attention(GraphLayer):
    """Settings that both have, and what follows the product."""

    def __init__(
        self, heads: int, out_features: int, concat: bool, dropout: float, loops: bool, bias: bool
    ) -> None:
        super().__init__()
        self.heads, self.out_features, self.concat = heads, out_features, concat
        self.dropout, self.loops = dropout, loops
        width = heads * out_features if concat else out_features
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        self.res: nn.Module | None = None  # PyG's `residual`

    def _edges(self, x: tuple[Tensor, Tensor], graph: Any) -> Propagation:
        found = self._graph(graph, None, x[0].shape[0], x[1].shape[0])
        # As in PyG, loops of a bipartite graph are the caller's business.
        loops = self.loops and x[0].shape[0] == x[1].shape[0]
        self.choice = _FIXED
        return found.matrix("sum", loops="replace" if loops else "keep")

    def _keep(self, like: Tensor, num_edges: int) -> Tensor | None:
        if not self.training or self.dropout == 0.0:
            return None
        return F.dropout(like.new_ones(num_edges, self.heads), self.dropout)

    def _finish(self, y: Tensor, targets: Tensor) -> Tensor:
        if not self.concat:
            y = y.view(-1, self.heads, self.out_features).mean(dim=1)
        if self.res is not None:
            y = y + self.res(targets)
        return y if self.bias is None else y + self.bias


class GAT(_Attention):
    """Each head weighs neighbours by `softmax(leaky(a_l . W x_i + a_r . W x_j))`.

    Args:
        in_features: of each node.
        out_features: of each head.
        heads: H.
        concat: heads side by side; False takes their mean.
        dropout: of the weights, while training.
        slope: of the leaky ReLU.
        loops: every node sees itself once.
        bias: add b.
        edge_features: of each edge; `a_e . W_e f_ij` is added to its logit. A loop has the mean of
            what reaches its node.
    """

    def __init__(  # noqa: PLR0913 - one argument per setting that PyG has
        self,
        in_features: int,
        out_features: int,
        heads: int = 1,
        *,
        concat: bool = True,
        dropout: float = 0.0,
        slope: float = 0.2,
        loops: bool = True,
        bias: bool = True,
        edge_features: int | None = None,
    ) -> None:
        super().__init__(heads, out_features, concat, dropout, loops, bias)
        self.slope = slope
        self.lin: nn.Module = nn.Linear(in_features, heads * out_features, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, out_features))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_features))
        # Of [H, C], as PyG has it: torch takes the sizes of three dimensions for a convolution's.
        for weight in (self.lin.weight, self.att_src[0], self.att_dst[0]):
            nn.init.xavier_uniform_(weight)
        self.lin_edge: nn.Module | None = None
        self.att_edge: nn.Parameter | None = None
        if edge_features is not None:
            self.lin_edge = nn.Linear(edge_features, heads * out_features, bias=False)
            self.att_edge = nn.Parameter(torch.empty(1, heads, out_features))
            for weight in (self.lin_edge.weight, self.att_edge[0]):
                nn.init.xavier_uniform_(weight)

    def forward(
        self, x: Tensor, graph: Any, edge_attr: Tensor | None = None, size: object = None
    ) -> Tensor:
        """Features [N, H * C], or [N, C] for the mean of heads.

        Args:
            x: [N, in].
            graph: a `Graph`, or what `Graph.of` takes; its weights do not take part.
            edge_attr: features of edges [E, D], as edges were given; PyG's name.
            size: is not needed; PyG passes it.
        """
        edges = self._edges((x, x), graph)
        h = self._transform(x, self.lin)
        # One narrow product instead of a pass over [N, H, C] for each side.
        eye = torch.eye(self.heads, dtype=h.dtype, device=h.device)[:, None, :]
        each = [(att.view(*att.shape[1:], 1) * eye) for att in (self.att_src, self.att_dst)]
        both = torch.cat(each, dim=2).view(h.shape[1], 2 * self.heads)
        sums = tall_linear(h, both.t(), measures=self.measures)
        source, target = sums[:, : self.heads], sums[:, self.heads :]
        keep = self._keep(h, edges.matrix.edges.num_edges)
        if edge_attr is None and self.lin_edge is None:
            parts: dict[str, Any] = {"target": target, "source": source, "slope": self.slope}
        else:
            targets, sources = edges.matrix.edges.endpoints
            own = target.index_select(0, targets) + source.index_select(0, sources)
            logits = own + self._of_edges(x, graph, edge_attr)
            parts = {"logits": F.leaky_relu(logits, self.slope)}
        return self._finish(attention(h, edges.matrix, keep=keep, **parts), x)

    def _of_edges(self, x: Tensor, graph: Any, edge_attr: Tensor | None) -> Tensor:
        """What features of edges add to logits, [E, H] as edges lie."""
        if edge_attr is None or self.lin_edge is None or self.att_edge is None:
            raise InputError(
                "GAT: features of edges go with edge_features: this layer"
                f" has {'none' if self.lin_edge is None else 'them'}, the call"
                f" {'none' if edge_attr is None else 'them'}."
            )
        found = self._graph(graph, None, x.shape[0], x.shape[0])
        # a . W f is one narrow product: nothing as wide as features is made for an edge.
        features = edge_attr.view(-1, 1) if edge_attr.ndim == 1 else edge_attr
        weight = plain_weight(self.lin_edge)
        if weight is None:
            of_heads = self.lin_edge(features).view(-1, self.heads, self.out_features)
            return found.laid_out((of_heads * self.att_edge).sum(-1), loops=self.loops)
        narrow = (weight.view(self.heads, self.out_features, -1) * self.att_edge[0][..., None]).sum(
            1
        )
        return found.laid_out(F.linear(features, narrow), loops=self.loops)


class GATv2(_Attention):
    """Each head weighs neighbours by `softmax(a . leaky(W_r x_i + W_l x_j))`.

    Args:
        in_features: of each node, or (of sources, of targets).
        out_features: of each head.
        heads: H.
        concat: heads side by side; False takes their mean.
        dropout: of the weights, while training.
        slope: of the leaky ReLU.
        loops: every node sees itself once.
        bias: add biases to both transforms, and b.
    """

    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        heads: int = 1,
        *,
        concat: bool = True,
        dropout: float = 0.0,
        slope: float = 0.2,
        loops: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__(heads, out_features, concat, dropout, loops, bias)
        self.slope = slope
        of_sources, of_targets = (
            in_features if isinstance(in_features, tuple) else (in_features, in_features)
        )
        self.lin_l: nn.Module = nn.Linear(of_sources, heads * out_features, bias=bias)
        self.lin_r: nn.Module = nn.Linear(of_targets, heads * out_features, bias=bias)
        self.att = nn.Parameter(torch.empty(1, heads, out_features))
        for weight in (self.lin_l.weight, self.lin_r.weight, self.att[0]):
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Features, graph: Any) -> Tensor:
        """Features of targets [M, H * C], or [M, C] for the mean of heads.

        Args:
            x: [N, in], or (of sources, of targets) for a bipartite graph.
            graph: a `Graph`, or what `Graph.of` takes; its weights do not take part.
        """
        sources, targets = sides(x)
        edges = self._edges((sources, targets), graph)
        h, own = self._transform(sources, self.lin_l), self.lin_r(targets)
        logits = pair_logits(h, own, self.att[0], edges.matrix, self.slope)
        keep = self._keep(h, edges.matrix.edges.num_edges)
        return self._finish(attention(h, edges.matrix, logits=logits, keep=keep), targets)
