# SPDX-License-Identifier: Apache-2.0
"""The optimizer's memory of single weights: cleared where a weight leaves or joins the training.

Survivors are not touched, bit for bit. A weight that joins starts as a new Parameter would: its
slots are zero and, with Adam, its own steps are counted.

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
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.surgery.optimizer_state import Part, check_state
from gossamer.pruning.schedules.layers import AnySparse

_GROWN_UP = 1e-3
# What is known of single entries of Parameters, from all processes that hold a part of each.
State = dict[str, dict[str, dict[str, torch.Tensor]]]
EntryParts = Mapping[nn.Parameter, Sequence[Mapping[str, torch.Tensor]]]


# Zero slots are the fresh state of each of these; Adam's step count is seen to below.
_KNOWN = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)


@runtime_checkable
class FollowsMasks(Protocol):
    """An optimizer that clears its own slots, so that weights may join in the middle of a run."""

    def reset_entries(self, parameter: nn.Parameter, where: torch.Tensor) -> None:
        """Make the entries of bool `where` (of the parameter's shape) as good as new."""


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


class OptimizerEntries:
    """One optimizer and the entries of its state that belong to masked weights.

    Of Adam's Parameters it knows which weights are young; `before` and `after` surround its step.

    Args:
        model: holds the weights.
        optimizer: trains them.
        grows: whether weights will join in the middle of the run.

    Attributes:
        optimizer: as given.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, grows: bool) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(
                f"optimizer: expected a torch optimizer, got {type(optimizer).__name__}."
            )
        if grows and not isinstance(optimizer, (*_KNOWN, FollowsMasks)):
            known = ", ".join(kind.__name__ for kind in _KNOWN)
            raise InputError(
                f"optimizer: this schedule lets weights come back, and what a fresh weight looks"
                f" like in {type(optimizer).__name__} is not known. Use {known}, give it a method"
                " reset_entries(parameter, where), or take a schedule that only prunes."
            )
        self._model = model
        self.optimizer = optimizer
        self._counts_ages = grows and isinstance(optimizer, torch.optim.Adam)
        self._young: dict[str, _Young] = {}

    def move(
        self, name: str, parameter: nn.Parameter, dropped: torch.Tensor, grown: torch.Tensor
    ) -> None:
        """Entries leave and join, bool tensors of the parameter's shape."""
        self.reset(parameter, dropped | grown)
        held = self._young.get(name)
        if held is not None:
            self._keep(name, held, ~dropped.reshape(-1)[held.index])
        index = grown.reshape(-1).nonzero().squeeze(1)
        # Nothing to do before the Parameter's first step.
        if self._counts_ages and self.optimizer.state.get(parameter) and len(index):
            age = torch.zeros(len(index), dtype=torch.int32, device=index.device)
            held = self._young.setdefault(name, _Young(parameter, index[:0], age[:0]))
            held.index, held.age = torch.cat([held.index, index]), torch.cat([held.age, age])

    def check(self, name: str, parameter: nn.Parameter) -> None:
        """Raise InputError if the state of `parameter` cannot follow a mask."""
        if not isinstance(self.optimizer, FollowsMasks):
            check_state(self.optimizer, parameter, f"{name}.weight")

    def forget(self, name: str, parameter: nn.Parameter) -> None:
        """The whole Parameter starts anew."""
        self.optimizer.state.pop(parameter, None)
        self._young.pop(name, None)

    def reset(self, parameter: nn.Parameter, where: torch.Tensor) -> None:
        """Zero all slots at bool `where`, of the parameter's shape."""
        if isinstance(self.optimizer, FollowsMasks):
            self.optimizer.reset_entries(parameter, where)
            return
        for value in self.optimizer.state.get(parameter, {}).values():
            if isinstance(value, torch.Tensor) and value.ndim and value.shape == parameter.shape:
                value.masked_fill_(where, 0)

    def before(self) -> None:
        """Before Adam's step: remember the weights it will change."""
        for name, held in list(self._young.items()):
            if held.parameter not in self.optimizer.state:
                # After `gossamer.compact`: the same entries among the kept values.
                layer = self._layer(name)
                held.index, held.parameter = _ranks(layer)[held.index], layer.trained()
            if held.parameter not in self.optimizer.state:
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
            parameter, groups = held.parameter, self.optimizer.param_groups
            group = next(g for g in groups if any(p is parameter for p in g["params"]))
            state = self.optimizer.state[parameter]
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
    return torch.ones_like(mask) if layer.trained().numel() == mask.numel() else mask


def _kept(layer: AnySparse) -> torch.Tensor:
    """Flat position in the dense weight of every entry of the trained Parameter."""
    return _held_entries(layer).nonzero().squeeze(1)


def _ranks(layer: AnySparse) -> torch.Tensor:
    """Place of every entry of the dense weight in the trained Parameter."""
    return _held_entries(layer).cumsum(0) - 1
