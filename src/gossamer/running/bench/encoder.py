# SPDX-License-Identifier: Apache-2.0
"""Whole encoders from token ids to the last hidden state, raced across engines.

Every entry of a race is checked against fp32 results of the same weights before it may start, and
all take turns: a slow moment of the machine hits all of them.

Legend: B sequences, T tokens, D features.
"""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.surgery import replace_module
from gossamer.ops.timing import race
from gossamer.ops.timing.load import LoadWatch
from gossamer.running.encoder.arrays import Arrays
from gossamer.running.rivals import EncoderEngine, EngineFailed
from gossamer.running.rivals.engine_scripts.turn import turn

Hidden = npt.NDArray[np.float32]


@dataclass(frozen=True)
class RaceEntry:
    """One engine with one encoder, ready to run; made by `of_model` or `of_engine`.

    Attributes:
        engine: as people call it.
        precision: it computes products in.
        sparsity: of the weights it makes use of; 0 where zeros cost what all weights cost.
        error: largest difference to the fp32 result of the same weights, over its largest value.
        watch: seconds of one turn.
    """

    OWN: ClassVar[str] = "gossamer"
    STOCK: ClassVar[str] = "torch"

    engine: str
    precision: str
    sparsity: float
    error: float
    watch: Callable[[], float]

    @classmethod
    def of_model(
        cls, names: tuple[str, str, float], base: nn.Module, ids_BT: torch.Tensor, expected: Hidden
    ) -> Self:
        """A module of this process; names: engine, precision, sparsity."""
        run = model_run(base, ids_BT)
        error = relative_error(run().float().numpy(), expected)
        return cls(*names, error, functools.partial(turn, run, torch.get_num_threads()))

    @classmethod
    def of_engine(
        cls,
        engine: EncoderEngine,
        names: tuple[str, float],
        arrays: Arrays,
        ids_BT: torch.Tensor,
        expected: Hidden,
    ) -> Self:
        """An encoder in another engine; names: precision, sparsity. EngineFailed if it refuses."""
        precision, sparsity = names
        key = f"{precision} {sparsity}"
        error = relative_error(engine.load(key, arrays, ids_BT, precision), expected)

        def watch() -> float:
            try:
                return engine.turn(key)
            except EngineFailed:
                return math.inf  # it ran once; where it died meanwhile it has no time

        return cls(engine.title, precision, sparsity, error, watch)


@dataclass(frozen=True)
class EncoderTime:
    """What came of an entry; `doubt` says what else a busy machine did meanwhile."""

    engine: str
    precision: str
    sparsity: float
    error: float
    ms: float
    doubt: str = field(default="", compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for --json."""
        return asdict(self)


def model_run(base: nn.Module, ids_BT: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A call of the module that takes ids and gives hidden states; nothing is padding."""
    inputs = {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)}

    def run() -> torch.Tensor:
        with torch.inference_mode():
            hidden: torch.Tensor = base(**inputs).last_hidden_state
        return hidden

    return run


def race_encoders(
    entries: Sequence[RaceEntry], seconds: float, min_rounds: int
) -> list[EncoderTime]:
    """Best times of all entries, taken in turns."""
    watches = [entry.watch for entry in entries]
    # Most of the work is that of other processes, for which this one waits.
    watch = LoadWatch(is_own=False)
    times = race(watches, budget_seconds=seconds, min_rounds=min_rounds, watch=watch)
    load = watch.load()
    doubt = "" if load.is_quiet else str(load)
    return [
        EncoderTime(entry.engine, entry.precision, entry.sparsity, entry.error, us * 1e-3, doubt)
        for entry, us in zip(entries, times, strict=True)
    ]


def relative_error(found: Hidden, expected: Hidden) -> float:
    """Largest difference over the largest value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def dense_copy(model: nn.Module) -> nn.Module:
    """The model with stock layers, zeros included: what runs without sparse kernels."""
    dense = copy.deepcopy(model)
    for _, layer in list(sparse_layers(dense, "masked", "compact")):
        replace_module(dense, layer, layer.to_dense())
    return dense.eval().requires_grad_(False)
