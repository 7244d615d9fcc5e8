# SPDX-License-Identifier: Apache-2.0
"""Where the time of a forward goes: every weight layer inside it, sparse and as its dense twin."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from gossamer.nn.layer_kinds import form_of
from gossamer.nn.surgery.carried import idle
from gossamer.running.conv_net import NetForward
from gossamer.running.encoder import NativeEncoder

_MIN_ROUNDS, _MAX_ROUNDS = 5, 50
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
    """

    layers: tuple[LayerTime, ...]
    dense_ms: float
    sparse_ms: float
    one_call: tuple[str, ...]

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
    names: dict[str, None] = {}
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
    for clock in clocks:
        names.update(dict.fromkeys(clock.best))
    found = [{name: 1e3 * best for name, best in clock.best.items()} for clock in clocks]
    layers = tuple(LayerTime(name, found[0].get(name), found[1].get(name)) for name in names)
    one_call = tuple(name for name in found[1] if name not in found[0])
    return LayerTimes(layers, whole[0], whole[1], one_call)


class _Clocks:
    """Hooks that time the layers of a model while the context is open; the best of all rounds."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.best: dict[str, float] = {}
        self._total: dict[str, float] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        self._total = {}
        for name, module in self._model.named_modules():
            forward = module.__dict__.get("forward")
            if isinstance(forward, NetForward):
                self._time_net(name or "network", forward)
            elif isinstance(module, NativeEncoder) or form_of(module) is not None:
                self._time(name or type(module).__name__, module)

    def __exit__(self, *_: object) -> None:
        for undo in self._handles:
            undo()
        self._handles.clear()
        for name, seconds in self._total.items():
            self.best[name] = min(seconds, self.best.get(name, float("inf")))

    def _time(self, name: str, module: nn.Module) -> None:
        begun: list[float] = []
        start = idle(lambda *_: begun.append(time.perf_counter()))
        stop = idle(lambda *_: self._add(name, time.perf_counter() - begun.pop()))
        before = module.register_forward_pre_hook(start)
        after = module.register_forward_hook(stop)
        self._handles += [before.remove, after.remove]

    def _time_net(self, name: str, forward: NetForward) -> None:
        """A net is no module: it is timed where the forward calls it."""
        net = forward.net

        def timed(x: torch.Tensor) -> torch.Tensor:
            before = time.perf_counter()
            y = net(x)
            self._add(f"{name} (one native call)", time.perf_counter() - before)
            return y

        def undo() -> None:
            forward.net = net

        forward.net = timed  # type: ignore[assignment]
        self._handles.append(undo)

    def _add(self, name: str, seconds: float) -> None:
        self._total[name] = self._total.get(name, 0.0) + seconds
