# SPDX-License-Identifier: Apache-2.0
"""Adam's bias correction for weights that joined late.

Adam divides its moments by 1 - beta^t, with t the steps of the whole Parameter. A weight grown at
step t starts with zero moments, so at its first update the division does nothing and the update is
(1 - beta1) / sqrt(1 - beta2) = 3.2 learning rates instead of one. Here the updates of young weights
are computed again with t counted from their own birth: exactly what Adam does to a new Parameter.

A weight stops being young when the correction of its second moment differs from 1 by less than
0.1 %; for beta2 = 0.999 that is after 6905 steps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.nn import CompactWeight
from gossamer.nn.surgery.optimizer_state import Part
from gossamer.pruning.schedules.layers import AnySparse

_GROWN_UP = 1e-3
# What is known of single entries of Parameters, from all processes that hold a part of each.
State = dict[str, dict[str, dict[str, torch.Tensor]]]
EntryParts = Mapping[nn.Parameter, Sequence[Mapping[str, torch.Tensor]]]


@dataclass
class _Young:
    """Young entries of one Parameter: flat positions and the updates each has had.

    `whole` says where they are in the Parameter that `parameter` was cut from, once it is cut.
    """

    parameter: nn.Parameter
    index: torch.Tensor
    age: torch.Tensor
    before: torch.Tensor | None = None
    whole: torch.Tensor | None = None


class YoungWeights:
    """Which weights of Adam's Parameters are young; `before` and `after` surround its step.

    Args:
        model: holds the weights.
        optimizer: none of another kind is ever young.
        grows: whether weights will join in the middle of the run.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, grows: bool) -> None:
        self._model = model
        self._optimizer = optimizer
        self._counts_ages = grows and isinstance(optimizer, torch.optim.Adam)
        self._young: dict[str, _Young] = {}

    def move(
        self, name: str, parameter: nn.Parameter, dropped: torch.Tensor, grown: torch.Tensor
    ) -> None:
        """Entries of bool `dropped` are no longer trained, those of `grown` begin."""
        held = self._young.get(name)
        if held is not None:
            self._keep(name, held, ~dropped.reshape(-1)[held.index])
        index = grown.reshape(-1).nonzero().squeeze(1)
        # Nothing to do before the Parameter's first step.
        if self._counts_ages and self._optimizer.state.get(parameter) and len(index):
            age = torch.zeros(len(index), dtype=torch.int32, device=index.device)
            held = self._young.setdefault(name, _Young(parameter, index[:0], age[:0]))
            held.index, held.age = torch.cat([held.index, index]), torch.cat([held.age, age])

    def clear(self, name: str) -> None:
        """The state of the whole Parameter starts anew, for all entries at once."""
        self._young.pop(name, None)

    def before(self) -> None:
        """Before Adam's step: remember the weights it will change."""
        for name, held in list(self._young.items()):
            if held.parameter not in self._optimizer.state:
                # After `gossamer.compact`: the same entries among the kept values.
                layer = self._layer(name)
                held.index, held.parameter = _ranks(layer)[held.index], layer.trained()
            if held.parameter not in self._optimizer.state:
                del self._young[name]
                continue
            flat = held.parameter.detach().reshape(-1)
            held.before = None if held.parameter.grad is None else flat[held.index]

    @torch.no_grad()
    def after(self) -> None:
        """After Adam's step: the same step again, with each entry's own age."""
        for name, held in list(self._young.items()):
            if held.before is None:
                continue
            held.age += 1
            parameter, groups = held.parameter, self._optimizer.param_groups
            group = next(g for g in groups if any(p is parameter for p in g["params"]))
            state = self._optimizer.state[parameter]
            parameter.view(-1)[held.index] = _updated(held, held.before, state, group)
            held.before = None
            # Steps after which beta2^age is below the limit.
            beta2 = float(group["betas"][1])
            adult = math.log(_GROWN_UP) / math.log(beta2) if 0.0 < beta2 < 1.0 else 1
            if int(held.age.max()) >= adult:
                self._keep(name, held, held.age < adult)

    def state_dict(self) -> State:
        """Positions in the dense weight and ages, by layer: what no optimizer's own state holds."""
        found = {}
        for name, held in self._young.items():
            layer, index = self._layer(name), held.index.clone()
            if held.parameter is layer.trained():
                index = _kept(layer)[index]
            found[name] = {"index": index, "age": held.age.clone()}
        return self._state(found)

    def load_state_dict(self, state: State, layers: Mapping[str, AnySparse]) -> None:
        """As `state_dict` gave it; `layers` are those of today, by name."""
        self._young = {}
        young = state.get("young", {}) if self._counts_ages else {}
        for name, part in young.items():
            index = _ranks(layers[name])[part["index"]]
            self._young[name] = _Young(layers[name].trained(), index, part["age"].clone())

    def follow(self, parts: Mapping[nn.Parameter, Part]) -> None:
        """A compact model was cut: entries that this process does not train are others' now."""
        for name, held in list(self._young.items()):
            layer, index, parameter = self._layer(name), held.index, held.parameter
            ranks = _ranks(layer)
            if parameter is not layer.trained():
                # Compacted after the last step.
                index, parameter = ranks[index], layer.trained()
            if parameter not in parts:
                del self._young[name]
                continue
            trained, entries = parts[parameter]
            place = torch.full((int(ranks[-1]) + 1,), -1, device=index.device)
            place[entries] = torch.arange(trained.numel(), device=index.device)
            held.parameter, held.index, held.whole = trained, place[index], index
            self._keep(name, held, held.index >= 0)

    def part_of(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        """Ages of the young entries of a cut Parameter, by their places in the whole one."""
        for held in self._young.values():
            if held.parameter is parameter and held.whole is not None:
                return {"index": held.whole, "age": held.age}
        return {}

    def whole_state(self, layers: Mapping[str, AnySparse], parts: EntryParts) -> State:
        """`state_dict`, from what `part_of` gave in all processes.

        Args:
            layers: of the whole model, with their masks, by name.
            parts: by Parameter of the whole model.
        """
        found = {}
        for name, layer in layers.items():
            given = parts.get(layer.trained(), ())
            if given:
                index, age = (torch.cat([part[key] for part in given]) for key in ("index", "age"))
                found[name] = {"index": _kept(layer)[index], "age": age}
        return self._state(found)

    def _state(self, young: dict[str, dict[str, torch.Tensor]]) -> State:
        return {"young": young} if self._counts_ages else {}

    def _layer(self, name: str) -> Any:
        return self._model.get_submodule(name)

    def _keep(self, name: str, held: _Young, which: torch.Tensor) -> None:
        held.index, held.age = held.index[which], held.age[which]
        held.whole = None if held.whole is None else held.whole[which]
        if not len(held.index):
            del self._young[name]


def _updated(
    held: _Young, old: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
) -> torch.Tensor:
    rate, (beta1, beta2) = float(group["lr"]), (float(beta) for beta in group["betas"])
    second = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"].view(-1)[held.index]
    first = state["exp_avg"].view(-1)[held.index]
    # Ages are few and small: a table of powers is much cheaper than a power for every weight.
    ages = torch.arange(int(held.age.max()) + 1, dtype=torch.float64, device=held.age.device)
    scale1 = (rate / (1 - beta1**ages)).to(first.dtype)[held.age]
    scale2 = (1 / (1 - beta2**ages).sqrt()).to(first.dtype)[held.age]
    if group.get("decoupled_weight_decay", False):
        old = old * (1 - rate * group["weight_decay"])
    updated: torch.Tensor = old - scale1 * first / (second.sqrt() * scale2 + group["eps"])
    return updated


def _held_entries(layer: AnySparse) -> torch.Tensor:
    """Bool [R * K]: the entries of the dense weight that the trained Parameter holds."""
    mask = layer.mask().reshape(-1)
    return mask if isinstance(layer, CompactWeight) else torch.ones_like(mask)


def _kept(layer: AnySparse) -> torch.Tensor:
    """Flat position in the dense weight of every entry of the trained Parameter."""
    return _held_entries(layer).nonzero().squeeze(1)


def _ranks(layer: AnySparse) -> torch.Tensor:
    """Place of every entry of the dense weight in the trained Parameter."""
    return _held_entries(layer).cumsum(0) - 1
