# SPDX-License-Identifier: Apache-2.0
"""Where the time of a forward goes: weight layers and attention, sparse and as the dense twin."""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from gossamer.nn.attention.parts import attention_parts
from gossamer.nn.layer_kinds import kind_of
from gossamer.nn.surgery.carried import idle
from gossamer.running.conv_net import NetForward
from gossamer.running.encoder import NativeEncoder

_MIN_ROUNDS, _MAX_ROUNDS = 5, 50
# Before the name of a module that computes attention: it may be a layer's, too.
_PART = "attention of "
Forward = Callable[[nn.Module], object]


@dataclass(frozen=True)
class LayerTime:
    """Milliseconds of one layer inside a forward; None where it is not run by itself."""

    name: str
    dense_ms: float | None
    sparse_ms: float | None


@dataclass(frozen=True)
class LayerTimes:
    """All layers, their sums and the whole forwards.

    Attributes:
        layers: in the order of their first call in the dense model.
        dense_ms: of the whole dense forward, without clocks in it.
        sparse_ms: of the whole sparse forward.
        one_call: what runs whole parts of the sparse model at once; their layers have no time.
        attention: scores, weights and values, without the layers that project them; None where a
            model has no attention, or runs it inside of one call.
    """

    layers: tuple[LayerTime, ...]
    dense_ms: float
    sparse_ms: float
    one_call: tuple[str, ...]
    attention: LayerTime = LayerTime("attention", None, None)

    @property
    def dense_sum_ms(self) -> float:
        """Of all layers."""
        return sum(layer.dense_ms or 0.0 for layer in self.layers)

    @property
    def sparse_sum_ms(self) -> float:
        """Of all layers, parts that are run at once included."""
        return sum(layer.sparse_ms or 0.0 for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for --json."""
        sums = {"dense_sum_ms": self.dense_sum_ms, "sparse_sum_ms": self.sparse_sum_ms}
        return {**asdict(self), **sums}


def layer_times(
    sparse: nn.Module, dense: nn.Module, forward: Forward, *, seconds: float = 2.0
) -> LayerTimes:
    """Best milliseconds of every weight layer, both models in turns.

    Args:
        sparse: from `gossamer.compile`.
        dense: the same model before that, without sparse kernels.
        forward: calls a model once.
        seconds: for all rounds.
    """
    clocks = [_Clocks(model) for model in (dense, sparse)]
    whole = [float("inf")] * 2
    start = time.perf_counter()
    with torch.inference_mode():
        for number in range(_MAX_ROUNDS):
            for i, model in enumerate((dense, sparse)):
                with clocks[i]:
                    forward(model)
                before = time.perf_counter()
                forward(model)
                whole[i] = min(whole[i], 1e3 * (time.perf_counter() - before))
            if number + 1 >= _MIN_ROUNDS and time.perf_counter() - start > seconds:
                break
    own, other = (clock.best_ms for clock in clocks)
    layers = tuple(LayerTime(name, own.get(name), other.get(name)) for name in {**own, **other})
    one_call = tuple(name for name in other if name not in own)
    between = LayerTime("attention", *(clock.attention_ms for clock in clocks))
    return LayerTimes(layers, whole[0], whole[1], one_call, between)


class _Clocks:
    """Hooks that time the layers of a model while the context is open; the best of all rounds."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.best_ms: dict[str, float] = {}
        self.attention_ms: float | None = None
        self._parts = attention_parts(model)
        self._total: defaultdict[str, float] = defaultdict(float)
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> None:
        self._total.clear()
        for name, module in self._model.named_modules():
            forward = module.__dict__.get("forward")
            if isinstance(forward, NetForward):
                self._time_net(name or "network", forward)
            elif isinstance(module, NativeEncoder) or kind_of(module):
                self._time(name or type(module).__name__, module)
        for name, module in self._parts.items():
            self._time(f"{_PART}{name}", module)

    def __exit__(self, *_: object) -> None:
        self._undo.close()
        parts = {name: s for name, s in self._total.items() if name.startswith(_PART)}
        layers = {name: s for name, s in self._total.items() if name not in parts}
        for name, seconds in layers.items():
            self.best_ms[name] = min(1e3 * seconds, self.best_ms.get(name, float("inf")))
        if not parts:
            return
        inside = sum(
            seconds
            for name, seconds in layers.items()
            if any(name.startswith(f"{part.removeprefix(_PART)}.") for part in parts)
        )
        ms = 1e3 * max(sum(parts.values()) - inside, 0.0)
        self.attention_ms = min(ms, math.inf if self.attention_ms is None else self.attention_ms)

    def _time(self, name: str, module: nn.Module) -> None:
        begun: list[float] = []
        start = idle(lambda *_: begun.append(time.perf_counter()))
        stop = idle(lambda *_: self._add(name, begun.pop()))
        self._undo.enter_context(module.register_forward_pre_hook(start))
        self._undo.enter_context(module.register_forward_hook(stop))

    def _time_net(self, name: str, forward: NetForward) -> None:
        """A net is no module: it is timed where the forward calls it."""
        net = forward.net

        def timed(x: torch.Tensor) -> torch.Tensor:
            before = time.perf_counter()
            y = net(x)
            self._add(f"{name} (one native call)", before)
            return y

        forward.net = timed  # type: ignore[assignment]
        self._undo.callback(setattr, forward, "net", net)

    def _add(self, name: str, start: float) -> None:
        self._total[name] += time.perf_counter() - start
