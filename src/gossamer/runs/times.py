# SPDX-License-Identifier: Apache-2.0
"""The time of a pruned model beside the dense one's, on a batch of the user's own data."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from gossamer.ops.timing import Duel, duel
from gossamer.pruning.calibration import Batch, evaluating
from gossamer.running.choice import Call, Choice, Chooser, Contenders, Rival
from gossamer.running.layers import compile as compile_model

_BUDGET_SECONDS = 1.0


class _AlwaysDense(Chooser):
    """Makes `compile` give the stock dense twin: same code path, same zeros, no sparse kernel."""

    def choose(self, contenders: Contenders, tokens: int) -> Choice:
        return Choice(tokens, "dense", None, None, "dense twin")

    def choose_among(self, sparse: Sequence[Rival], dense: Call) -> Choice:
        return Choice(sparse[0].key.tokens, "dense", None, None, "dense twin")


def tokens_seen(model: nn.Module, layers: Iterable[nn.Module], batch: Any) -> tuple[int, ...]:
    """How many activation rows enter the Linears of `layers` while the model reads one batch."""
    counts: set[int] = set()

    def count(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and args[0].numel():
            counts.add(args[0].numel() // args[0].shape[-1])

    handles = [
        layer.register_forward_pre_hook(count) for layer in layers if isinstance(layer, nn.Linear)
    ]
    try:
        with evaluating(model), torch.no_grad():
            Batch(batch).run(model)
    finally:
        for handle in handles:
            handle.remove()
    return tuple(sorted(counts))


def time_beside_dense(
    model: nn.Module, tokens: tuple[int, ...], batch: Any, dense: nn.Module | None = None
) -> tuple[Duel, nn.Module]:
    """One forward, dense against compiled, interleaved; and the compiled model.

    `dense` is the model before its shapes changed; without it the model's own dense twin runs.
    """
    if dense is None:
        dense = compile_model(model, tokens, chooser=_AlwaysDense())
    fast = compile_model(model, tokens)
    calls = [Batch(batch).call(net) for net in (dense, fast)]
    with torch.inference_mode():
        return duel(*calls, budget_seconds=_BUDGET_SECONDS), fast
