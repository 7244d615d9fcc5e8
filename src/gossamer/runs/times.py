# SPDX-License-Identifier: Apache-2.0
"""The time of a pruned model beside the dense one's, on a batch of the user's own data."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gossamer.nn.batch import call_on_batch
from gossamer.ops.timing import Duel, duel
from gossamer.pruning.calibration import evaluating
from gossamer.report import Report
from gossamer.running.choice import Call, Choice, Chooser, Contenders, Rival
from gossamer.running.layers import compile as compile_model

_BUDGET_SECONDS = 1.0


class _AlwaysDense(Chooser):
    """Makes `compile` give the stock dense twin: same code path, same zeros, no sparse kernel."""

    def choose(self, contenders: Contenders, tokens: int) -> Choice:
        return Choice(tokens, "dense", "dense twin")

    def choose_among(self, sparse: Sequence[Rival], dense: Call) -> Choice:
        return Choice(sparse[0].key.tokens, "dense", "dense twin")


def tokens_seen(model: nn.Module, layers: Iterable[nn.Module], batch: Any) -> tuple[int, ...]:
    """How many activation rows enter the Linears of `layers` while the model reads one batch."""
    counts: set[int] = set()
    handles = [
        layer.register_forward_pre_hook(_counter(counts))
        for layer in layers
        if isinstance(layer, nn.Linear)
    ]
    try:
        with evaluating(model), torch.no_grad():
            call_on_batch(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return tuple(sorted(counts))


def time_beside_dense(
    model: nn.Module, tokens: tuple[int, ...], batch: Any, dense: nn.Module | None = None
) -> Duel:
    """One forward, dense against compiled, interleaved. Holds both copies while it measures.

    `dense` is the model before its shapes changed; without it the model's own dense twin runs.
    """
    if dense is None:
        dense = compile_model(model, tokens, chooser=_AlwaysDense())
    fast = compile_model(model, tokens)
    with torch.inference_mode():
        return duel(
            functools.partial(call_on_batch, dense, batch),
            functools.partial(call_on_batch, fast, batch),
            budget_seconds=_BUDGET_SECONDS,
        )


def with_times(report: Report, times: Duel) -> Report:
    """The report with the times, and with how far to trust them."""
    dense_ms, sparse_ms = (us / 1000 for us in times.us)
    return replace(report, ms_dense=dense_ms, ms_sparse=sparse_ms, doubt=times.doubt)


def _counter(counts: set[int]) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def count(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and args[0].numel():
            counts.add(args[0].numel() // args[0].shape[-1])

    return count
