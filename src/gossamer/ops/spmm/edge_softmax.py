# SPDX-License-Identifier: Apache-2.0
"""Attention over the edges of each target: softmax and product in one pass.

    w[e] = softmax over the edges of a target of leaky(target[i] + source[j]), or of given logits
    y[i] = sum over its edges of w[e] * keep[e] * x[j]

The forward keeps w (and w * keep), nothing as wide as features per edge. The backward takes dot
products along edges, turns them into gradients of logits in the same pass, and multiplies with the
transpose.

Legend: N sources, M targets, E edges, H heads, F features of all heads.
"""

from typing import Any

import torch
from torch import Tensor

from gossamer.errors import InputError
from gossamer.ops import _native
from gossamer.ops.addresses import address
from gossamer.ops.calls import define_op
from gossamer.ops.kernels import active_kernels
from gossamer.ops.results import new_result
from gossamer.ops.spmm.edges import MATRICES, EdgeMatrix
from gossamer.ops.spmm.products import Gradients, _spmm, endpoints, is_half, runs_native

_WHERE = "graph attention"
_ADVICE = "Use fewer heads or narrower layers, sample neighbours, or free memory."
_MOST_HEADS = 256


def _addresses(*tensors: Tensor | None) -> tuple[int, ...]:
    return tuple(address(t, _WHERE) for t in tensors)


def _fake_attention(
    x: Tensor,
    target: Tensor | None,
    source: Tensor | None,
    logits: Tensor | None,
    keep: Tensor | None,
    matrix: int,
    slope: float,
    sizes: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    num_targets, num_edges, heads = sizes
    weights = x.new_empty(num_edges, heads)
    kept = x.new_empty((num_edges, heads) if keep is not None else (0,))
    return x.new_empty(num_targets, x.shape[1]), weights, kept


@define_op("graph_attention", _WHERE, _fake_attention, advice=_ADVICE)
def _attention(
    x: Tensor,
    target: Tensor | None,
    source: Tensor | None,
    logits: Tensor | None,
    keep: Tensor | None,
    matrix: int,
    slope: float,
    sizes: list[int],
) -> tuple[Tensor, Tensor, Tensor]:
    num_targets, num_edges, heads = sizes
    y = new_result(x, num_targets, x.shape[1])
    weights = new_result(x, num_edges, heads)
    if logits is not None:
        weights.copy_(logits)
    kept = new_result(x, num_edges, heads) if keep is not None else x.new_empty(0)
    x = x.contiguous()
    target, source, keep = (_dense(t) for t in (target, source, keep))
    _native.graph_attention(
        MATRICES.find(matrix).edges.by_target.native,
        *_addresses(target, source),
        slope,
        *_addresses(weights, keep, kept if keep is not None else None),
        heads,
        *_addresses(x, y),
        y.shape[1],
        active_kernels(),
    )
    return y, weights, kept


def _dense(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.contiguous()


@define_op(
    "graph_attention_backward",
    _WHERE,
    lambda grad, x, target, source, keep, weights, matrix, slope: (
        torch.empty_like(weights),
        weights.new_empty(grad.shape[0], weights.shape[1]),
        weights.new_empty(x.shape[0], weights.shape[1]),
    ),
    advice=_ADVICE,
)
def _attention_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor | None,
    source: Tensor | None,
    keep: Tensor | None,
    weights: Tensor,
    matrix: int,
    slope: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the logits, of what targets add to them, and of what sources do."""
    edges, heads = MATRICES.find(matrix).edges, weights.shape[1]
    dlogits = new_result(weights, *weights.shape)
    dtarget = new_result(weights, grad.shape[0], heads)
    dsource = new_result(weights, x.shape[0], heads)
    grad, x = grad.contiguous(), x.contiguous()
    target, source, keep = (_dense(t) for t in (target, source, keep))
    _native.graph_attention_backward(
        edges.by_target.native,
        *_addresses(target, source),
        slope,
        *_addresses(weights, keep),
        heads,
        *_addresses(grad, x, dlogits, dtarget),
        grad.shape[1],
        active_kernels(),
    )
    if target is not None:
        _native.graph_edge_sum(
            edges.by_source.native, *_addresses(dlogits, dsource), heads, active_kernels()
        )
    return dlogits, dtarget, dsource


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, target, source, _, keep, ctx.matrix, ctx.slope, _ = inputs
    _, weights, kept = output
    ctx.has_keep = keep is not None
    ctx.held = MATRICES.find(ctx.matrix)
    ctx.save_for_backward(x, target, source, keep, weights, kept)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None, *of_weights: Tensor | None) -> Gradients:
    x, target, source, keep, weights, kept = ctx.saved_tensors
    nothing: Gradients = (None,) * 8
    if grad is None:
        return nothing
    needs_x, needs_target, needs_source, needs_logits = ctx.needs_input_grad[:4]
    dx = None
    dlogits = dtarget = dsource = None
    if needs_x:
        values = kept if ctx.has_keep else weights
        dx = _spmm(grad, values, None, ctx.matrix, True, values.shape[1], x.shape[0])
    if needs_target or needs_source or needs_logits:
        dlogits, dtarget, dsource = _attention_backward(
            grad, x, target, source, keep, weights, ctx.matrix, ctx.slope
        )
    return (
        dx,
        dtarget if needs_target else None,
        dsource if needs_source else None,
        dlogits if needs_logits else None,
        None, None, None, None,
    )  # fmt: skip


_attention.register_autograd(_backward, setup_context=_save)


@define_op(
    "graph_pair_logits",
    _WHERE,
    lambda source, target, att, matrix, slope, num_edges: source.new_empty(num_edges, att.shape[0]),
    advice=_ADVICE,
)
def _pair_logits(
    source: Tensor, target: Tensor, att: Tensor, matrix: int, slope: float, num_edges: int
) -> Tensor:
    logits = new_result(source, num_edges, att.shape[0])
    _native.graph_pair_logits(
        MATRICES.find(matrix).edges.by_target.native,
        *_addresses(target.contiguous(), source.contiguous(), att.contiguous()),
        slope,
        *_addresses(logits),
        att.shape[0],
        source.shape[1],
        active_kernels(),
    )
    return logits


@define_op(
    "graph_pair_backward",
    _WHERE,
    lambda grad, source, target, att, matrix, slope: tuple(
        torch.empty_like(t) for t in (source, target, att)
    ),
    advice=_ADVICE,
)
def _pair_backward(
    grad: Tensor, source: Tensor, target: Tensor, att: Tensor, matrix: int, slope: float
) -> tuple[Tensor, Tensor, Tensor]:
    edges = MATRICES.find(matrix).edges
    source, target, att, grad = (t.contiguous() for t in (source, target, att, grad))
    dsource, dtarget, datt = (new_result(t, *t.shape) for t in (source, target, att))
    for rows, own, other, dx, sums in (
        (edges.by_source, source, target, dsource, None),
        (edges.by_target, target, source, dtarget, datt),
    ):
        _native.graph_pair_backward(
            rows.native,
            *_addresses(own, other, att, grad),
            slope,
            *_addresses(dx, sums),
            att.shape[0],
            source.shape[1],
            active_kernels(),
        )
    return dsource, dtarget, datt


def _save_pair(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.settings = inputs[3:5]
    ctx.held = MATRICES.find(inputs[3])


def _pair_logits_backward(ctx: Any, grad: Tensor) -> Gradients:
    return *_pair_backward(grad, *ctx.saved_tensors, *ctx.settings), None, None, None


_pair_logits.register_autograd(_pair_logits_backward, setup_context=_save_pair)


def attention(
    x: Tensor,
    matrix: EdgeMatrix,
    *,
    target: Tensor | None = None,
    source: Tensor | None = None,
    logits: Tensor | None = None,
    keep: Tensor | None = None,
    slope: float = 0.2,
) -> Tensor:
    """Features of sources, weighed by a softmax over the edges of each target; [M, F].

    Args:
        x: [N, F], where each head has F / H features.
        matrix: the edges; its weights do not take part.
        target: [M, H], what a target adds to the logits of its edges.
        source: [N, H], what a source adds to them; a leaky ReLU follows.
        logits: [E, H] in place of target and source, as edges lie.
        keep: [E, H], what dropout multiplies the weights by.
        slope: of the leaky ReLU.

    bfloat16 features are computed in float32, and the result is rounded.
    """
    edges = matrix.edges
    if logits is None and (target is None or source is None):
        raise InputError(f"{_WHERE}: needs target and source, or logits.")
    heads = logits.shape[1] if logits is not None else source.shape[1]  # type: ignore[union-attr]
    if not 1 <= heads <= _MOST_HEADS or x.shape[1] % heads:
        raise InputError(
            f"{_WHERE}: {heads} heads over {x.shape[1]} features; expected 1 to {_MOST_HEADS} that"
            " divide them."
        )
    if is_half(x):
        given = (None if t is None else t.float() for t in (target, source, logits, keep))
        names = dict(zip(("target", "source", "logits", "keep"), given, strict=True))
        return attention(x.float(), matrix, slope=slope, **names).to(x.dtype)
    if runs_native(x, target, source, logits, keep):
        sizes = [edges.num_targets, edges.num_edges, heads]
        y: Tensor = _attention(x, target, source, logits, keep, matrix.number, slope, sizes)[0]
        return y
    targets, sources = endpoints(matrix, x.device)
    if logits is None:
        sums = target[targets] + source[sources]  # type: ignore[index]
        logits = torch.nn.functional.leaky_relu(sums, slope)
    weights = _softmax_by_torch(logits, targets, edges.num_targets)
    if keep is not None:
        weights = weights * keep
    messages = x[sources].view(len(sources), heads, x.shape[1] // heads) * weights[:, :, None]
    flat = messages.reshape(len(sources), x.shape[1])
    return x.new_zeros(edges.num_targets, x.shape[1]).index_add(0, targets, flat)


def _softmax_by_torch(logits: Tensor, targets: Tensor, num_targets: int) -> Tensor:
    index = targets[:, None].expand_as(logits)
    most = logits.detach().new_zeros(num_targets, logits.shape[1])
    most = most.scatter_reduce(0, index, logits.detach(), "amax", include_self=False)
    powers = (logits - most[targets]).exp()
    total = torch.zeros_like(most).index_add(0, targets, powers)
    return powers / total[targets]


def pair_logits(
    source: Tensor, target: Tensor, att: Tensor, matrix: EdgeMatrix, slope: float = 0.2
) -> Tensor:
    """`att . leaky(source[j] + target[i])` of every edge and head, [E, H] (GATv2).

    Args:
        source: [N, F].
        target: [M, F].
        att: [H, F / H].
        matrix: the edges.
        slope: of the leaky ReLU.
    """
    if is_half(source):
        return pair_logits(source.float(), target.float(), att.float(), matrix, slope)
    if runs_native(source, target, att):
        settings = matrix.number, slope, matrix.edges.num_edges
        logits: Tensor = _pair_logits(source, target, att, *settings)
        return logits
    targets, sources = endpoints(matrix, source.device)
    pairs = torch.nn.functional.leaky_relu(source[sources] + target[targets], slope)
    return (pairs.view(len(sources), *att.shape) * att).sum(-1)
