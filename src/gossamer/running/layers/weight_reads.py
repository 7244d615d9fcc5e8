# SPDX-License-Identifier: Apache-2.0
"""Which layers have a weight that the model computes with by itself, found by running an example.

`F.linear(x, self.a.weight)` never calls layer `a`, so nothing but the dense weight will do there.
In the run every layer is behind a stand-in: a look at `weight.dtype` or its shape is answered as
a packed layer would answer it, and any other use is noted and gets the real weight.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from gossamer.nn import replace_module
from gossamer.nn.batch import call_on_batch
from gossamer.nn.layer_kinds import weight_of
from gossamer.nn.layers.parts import WeightStandIn

READ_BY_MODEL = "the model computes with its weight itself, beside calling the layer or instead"


def weights_read(model: nn.Module, example: Any, layers: Iterable[nn.Module]) -> set[int]:
    """Ids of those of `layers` whose weight `model` uses outside of them; empty without an example.

    Args:
        model: in eval mode; it comes back as it was.
        example: what the model is called with, see `gossamer.nn.batch.call_on_batch`.
        layers: Linear and Conv2d, stock, masked or compact.
    """
    probes = [_Probe(layer) for layer in layers if layer is not model]
    if example is None or not probes:
        return set()
    for probe in probes:
        replace_module(model, probe.layer, probe)
    try:
        with torch.no_grad():
            call_on_batch(model, example)
    except Exception:
        # Something cannot take a stand-in. If it is the model, its next run says so.
        return {id(probe.layer) for probe in probes if probe.was_read}
    finally:
        for probe in probes:
            replace_module(model, probe, probe.layer)
    return {id(probe.layer) for probe in probes if probe.was_used}


class _Probe(nn.Module):
    """A layer that notes who reads its weight."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer: Any = layer
        self.was_read = self.was_used = False

    @property
    def weight(self) -> torch.Tensor:
        self.was_read = True
        weight = self.layer.weight
        return WeightStandIn(tuple(weight.shape), weight.dtype, weight.device, self._give)

    def _give(self) -> torch.Tensor:
        self.was_used = True
        return weight_of(self.layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.layer(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)
