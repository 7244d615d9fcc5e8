# SPDX-License-Identifier: Apache-2.0
"""What the optimizers share: where master and moments live, steps in pieces, exact state.

A step goes through a parameter in pieces that fit a cache: read master, gradient and moments as
float32, update them, write them back. So nothing of a parameter's size is allocated, and the kept
state is all there is: per bfloat16 parameter 2 bytes of weight, 2 of gradient, 2 of low bits and 4
per moment, or 1 of low bits and 1 per moment.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, cast, get_args

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn import MaskedWeight
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.layers.parts import DenseHome
from gossamer.nn.surgery.compaction import Convert
from gossamer.training.optim import halves
from gossamer.training.optim.moments import Spec, StoredMoment
from gossamer.training.optim.pieces import numbers_of
from gossamer.training.optim.state_checks import (
    LOW,
    MASTER,
    MASTER_KEYS,
    checked_state,
    refuse_gradient,
    refuse_number,
    refuse_parameter,
)

Master = Literal["split", "split8", "fp32"]
Moments = Literal["fp32", "8bit"]


class StepsEachParameter(torch.optim.Optimizer, ABC):
    """An optimizer that takes its step parameter by parameter."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step for all parameters that have a gradient; the loss if a closure is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None and param.numel():
                    self._step_parameter(param, group)
        return loss

    @abstractmethod
    def _step_parameter(self, param: nn.Parameter, group: dict[str, Any]) -> None:
        """One step of the algorithm for a parameter that has a gradient."""


class SmallStateOptimizer(StepsEachParameter):
    """Base of AdamW, SGD, LAMB and LARS.

    Args:
        params: Parameters or groups of them; `master`, `moments` and every number may be set per
            group. float32 and float64 parameters are their own master.
        defaults: settings of the algorithm.
        master: of bfloat16 parameters. "split": the 16 low bits that make the weight an exact
            float32. "split8": 8 of them, a 24-bit master. "fp32": a float32 copy; the only one for
            float16.
        moments: "fp32" (float64 for float64 parameters), or "8bit" codes.
    """

    MOMENTS: ClassVar[tuple[StoredMoment, ...]] = ()
    # Settings that are numbers from 0, and what they must stay below.
    RANGES: ClassVar[dict[str, float]] = {}

    def __init__(
        self, params: Any, defaults: dict[str, Any], master: Master, moments: Moments
    ) -> None:
        super().__init__(params, {**defaults, "master": master, "moments": moments})
        self._masked: dict[nn.Parameter, MaskedWeight] = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; settings and dtypes are checked."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._check_group(group)
        except InputError:
            self.param_groups.pop()
            raise

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise InputError for settings out of range; each algorithm adds its own."""
        name = type(self).__name__
        for key, below in self.RANGES.items():
            if key == "betas":
                for index, beta in enumerate(group[key]):
                    refuse_number(name, f"{key}[{index}]", beta, below)
            else:
                refuse_number(name, key, group[key], below)
        for key, choices in (("master", get_args(Master)), ("moments", get_args(Moments))):
            if group[key] not in choices:
                raise InputError(
                    f"{name}: {key} must be one of {', '.join(choices)}; got {group[key]!r}."
                )
        for param in group["params"]:
            refuse_parameter(name, param, group["master"])

    def _started(self, param: nn.Parameter, group: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """The state of a parameter, made at its first step, and the number of this step."""
        refuse_gradient(type(self).__name__, param)
        state = self.state[param]
        if "step" not in state:
            self._begin(state, param, group)
        state["step"] += 1
        return state, int(state["step"])

    def _begin(self, state: dict[str, Any], param: nn.Parameter, group: dict[str, Any]) -> None:
        # Low bits may be there already: `split_masters` puts them in before the first step.
        for key, (shape, dtype) in self.state_spec(param, group).items():
            if key not in state:
                state[key] = torch.zeros(shape, dtype=dtype, device=param.device)
                if key == MASTER:
                    state[key].copy_(numbers_of(param))

    def state_spec(self, param: torch.Tensor, group: dict[str, Any]) -> Spec:
        """Keys, shapes and dtypes of the state of a parameter in a group."""
        spec: Spec = {"step": ((), torch.float32)}
        for moment in self.moments_of(group):
            spec |= moment.spec(param, group["moments"] == "8bit")
        if param.dtype in (torch.float32, torch.float64):
            return spec
        shape = tuple(param.shape)
        if group["master"] == "fp32":
            return {**spec, MASTER: (shape, torch.float32)}
        return {**spec, LOW: (shape, torch.int8 if group["master"] == "split8" else torch.int16)}

    def moments_of(self, group: dict[str, Any]) -> tuple[StoredMoment, ...]:
        """The running averages that a group keeps: none where momentum is a setting and 0."""
        return self.MOMENTS if group.get("momentum", True) else ()

    def follow_masks(self, model: nn.Module) -> None:
        """Let norms leave out pruned entries of the masked layers of `model`, wherever masks move.

        Without it LAMB and LARS take a whole masked weight for its kept part, which is the same as
        long as pruned entries are 0: not if they had moments when they were pruned.
        """
        for _, layer in sparse_layers(model, "masked"):
            self._masked[layer.weight_parameter()] = layer

    def _norm(self, vector: torch.Tensor, param: nn.Parameter) -> float:
        """The 2-norm over the kept entries of a parameter, summed in float64.

        In float64 the order of the sum does not show: compact values and a masked weight with zeros
        between them have the same norm.
        """
        layer = self._masked.get(param)
        if layer is not None:
            vector = torch.where(layer._mask.view(-1), vector, 0.0)
        return float(torch.linalg.vector_norm(vector, dtype=torch.float64))

    def split_masters(self, params: Any = None) -> int:
        """Halve float32 parameters in place: bfloat16 weights now, their low bits in the state.

        No bit of a master is lost. Gradients that are there are rounded. Layers must take bfloat16
        weights: compact ones do, whatever the type of their input.

        Args:
            params: which of the held parameters; None for all float32 ones.

        Returns:
            how many parameters were split.
        """
        chosen = None if params is None else {id(param) for param in params}
        count = 0
        for group in self.param_groups:
            for param in group["params"]:
                wanted = chosen is None or id(param) in chosen
                if not wanted or param.dtype is not torch.float32:
                    continue
                self._split_one(param, group)
                count += 1
        return count

    def _split_one(self, param: nn.Parameter, group: dict[str, Any]) -> None:
        if DenseHome.of(param) is not None:
            raise InputError(
                f"{type(self).__name__}.split_masters: a parameter of {list(param.shape)} has its"
                " numbers in a dense weight. Split first, then give_up_values()."
            )
        master, gradient = param.detach(), param.grad
        if group["master"] == "split":
            weight, low = halves.split(master)
        elif group["master"] == "split8":
            weight, low = halves.split_24(master, 0.5)
        else:
            weight, low = halves.rounded(master), None
        param.grad = None
        param.data = weight
        param.grad = None if gradient is None else gradient.to(weight.dtype)
        self.state[param][MASTER if low is None else LOW] = master.clone() if low is None else low

    def master_of(self, param: nn.Parameter) -> torch.Tensor:
        """A copy of the parameter in full precision."""
        state = self.state.get(param, {})
        if LOW in state:
            return halves.join(numbers_of(param), state[LOW])
        return cast("torch.Tensor", state.get(MASTER, numbers_of(param))).detach().clone()

    def mapped_state(self, param: nn.Parameter, convert: Convert) -> dict[str, Any]:
        """The state of `param` at other positions; 8-bit codes take their exponents along."""
        state = dict(self.state.get(param, {}))
        mapped: dict[str, Any] = {}
        for moment in self.MOMENTS:
            if moment.key in state:
                mapped |= moment.mapped(state, convert)
        for key in MASTER_KEYS:
            if key in state:
                mapped[key] = convert(state[key])
        return {**state, **mapped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over groups and state bit by bit; what does not fit is refused beforehand."""
        restored = checked_state(self, state_dict)
        # torch casts state to the dtype of the parameter, which would halve moments and low bits.
        super().load_state_dict({**state_dict, "state": {}})
        for param, state in restored.items():
            self.state[param] = state
