# SPDX-License-Identifier: Apache-2.0
"""What the optimizers share: where master and moments live, steps in pieces, exact state.

A step goes through a parameter in pieces that fit a cache: read master, gradient and moments as
float32, update them, write them back. So nothing of a parameter's size is allocated, and the kept
state is all there is: per bfloat16 parameter 2 bytes of weight, 2 of gradient, 2 of low bits and 4
per moment, or 1 of low bits and 1 per moment.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import Any, ClassVar, Literal, cast, get_args

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.layers import MaskedWeight
from gossamer.nn.layers.parts import DenseHome
from gossamer.nn.surgery.optimizer_state import Convert
from gossamer.training.optim import halves
from gossamer.training.optim.codes import Spec, State, StoredMoment
from gossamer.training.optim.pieces import LOW, MASTER, numbers_of

# Parameters and their settings, as torch keeps them.
ParamGroup = dict[str, Any]
Master = Literal["split", "split8", "fp32"]
Moments = Literal["fp32", "8bit"]
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class StepsEachParameter(torch.optim.Optimizer, ABC):
    """An optimizer that takes its step parameter by parameter."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step for all parameters that have a gradient; the loss if a closure is given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._before_step()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None and param.numel():
                    self._step_parameter(param, group)
        return loss

    def _before_step(self) -> None:
        """What must be known of all gradients before the first parameter moves."""

    @abstractmethod
    def _step_parameter(self, param: nn.Parameter, group: ParamGroup) -> None:
        """One step of the algorithm for a parameter that has a gradient."""


class SmallStateOptimizer(StepsEachParameter):
    """Base of AdamW, SGD, LAMB and LARS.

    Args:
        params: Parameters or groups of them; `master`, `moments` and every number may be set per
            group. float32 and float64 parameters are their own master.
        master: of bfloat16 parameters. "split": the 16 low bits that make the weight an exact
            float32. "split8": 8 of them, a 24-bit master. "fp32": a float32 copy; the only one for
            float16.
        moments: "fp32" (float64 for float64 parameters), or "8bit" codes.
        settings: of the algorithm.
    """

    MOMENTS: ClassVar[tuple[StoredMoment, ...]] = ()
    # Settings that are numbers from 0, and what they must stay below.
    RANGES: ClassVar[dict[str, float]] = {}

    def __init__(self, params: Any, master: Master, moments: Moments, **settings: Any) -> None:
        super().__init__(params, {**settings, "master": master, "moments": moments})
        self._masked: dict[nn.Parameter, MaskedWeight] = {}

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a group of parameters; settings and dtypes are checked."""
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except InputError:
            self.param_groups.pop()
            raise

    def _check_group(self, group: ParamGroup) -> None:
        """Raise InputError for settings out of range; each algorithm adds its own."""
        name = type(self).__name__
        for key, below in self.RANGES.items():
            if key == "betas":
                for index, beta in enumerate(group[key]):
                    self._check_number(f"{key}[{index}]", beta, below)
            else:
                self._check_number(key, group[key], below)
        for key, choices in (("master", get_args(Master)), ("moments", get_args(Moments))):
            if group[key] not in choices:
                raise InputError(
                    f"{name}: {key} must be one of {', '.join(choices)}; got {group[key]!r}."
                )
        for param in group["params"]:
            what = f"{name}: a parameter of {list(param.shape)} is"
            if param.dtype not in _DTYPES:
                raise InputError(
                    f"{what} {param.dtype}; expected float32, float64, bfloat16 or float16."
                )
            if param.dtype is torch.float16 and group["master"] != "fp32":
                raise InputError(
                    f"{what} float16, which is not the upper half of a float32. Use bfloat16, or"
                    ' master="fp32".'
                )

    def _check_number(self, key: str, value: Any, below: float = inf) -> None:
        """Raise InputError unless `value` is a number in [0, below)."""
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if not isinstance(value, (int, float)) or not 0 <= value < below:
            name = type(self).__name__
            raise InputError(f"{name}: {key} must be in [0.0, {below}), got {value!r}.")

    def _started(self, param: nn.Parameter, group: ParamGroup) -> tuple[State, int]:
        """The state of a parameter, made at its first step, and the number of this step."""
        if param.grad is not None and param.grad.layout is not torch.strided:
            raise InputError(
                f"{type(self).__name__}: the gradient of a parameter of {list(param.shape)} is a"
                f" sparse tensor ({param.grad.layout}). Use dense gradients: sparse=False in"
                " nn.Embedding."
            )
        state = self.state[param]
        if "step" not in state:
            # Low bits may be there already: `split_masters` puts them in before the first step.
            for key, (shape, dtype) in self.state_spec(param, group).items():
                if key not in state:
                    state[key] = torch.zeros(shape, dtype=dtype, device=param.device)
                    if key == MASTER:
                        state[key].copy_(numbers_of(param))
        state["step"] += 1
        return state, int(state["step"])

    def state_spec(self, param: torch.Tensor, group: ParamGroup) -> Spec:
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

    def moments_of(self, group: ParamGroup) -> tuple[StoredMoment, ...]:
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
            vector = torch.where(layer._mask.view(-1), vector.reshape(-1), 0.0)
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
                if wanted and param.dtype is torch.float32:
                    self._split_one(param, group["master"])
                    count += 1
        return count

    def _split_one(self, param: nn.Parameter, kind: Master) -> None:
        if DenseHome.of(param) is not None:
            raise InputError(
                f"{type(self).__name__}.split_masters: a parameter of {list(param.shape)} has its"
                " numbers in a dense weight. Split first, then give_up_values()."
            )
        master, gradient, state = param.detach(), param.grad, self.state[param]
        if kind == "fp32":
            weight, state[MASTER] = halves.rounded(master), master.clone()
        elif kind == "split":
            weight, state[LOW] = halves.split(master)
        else:
            weight, state[LOW] = halves.split_24(master, 0.5)
        param.grad = None
        param.data = weight
        param.grad = None if gradient is None else gradient.to(weight.dtype)

    def master_of(self, param: nn.Parameter) -> torch.Tensor:
        """A copy of the parameter in full precision."""
        state = self.state.get(param, {})
        if LOW in state:
            return halves.join(numbers_of(param), state[LOW])
        return cast("torch.Tensor", state.get(MASTER, numbers_of(param))).detach().clone()

    def mapped_state(self, param: nn.Parameter, convert: Convert) -> State:
        """The state of `param` at other positions; 8-bit codes take their exponents along."""
        state = dict(self.state.get(param, {}))
        mapped: State = {}
        for moment in self.MOMENTS:
            if moment.key in state:
                mapped |= moment.mapped(state, convert)
        mapped |= {key: convert(state[key]) for key in (LOW, MASTER) if key in state}
        return {**state, **mapped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over groups and state bit by bit; what does not fit is refused beforehand."""
        restored = self._checked(state_dict)
        # torch casts state to the dtype of the parameter, which would halve moments and low bits.
        super().load_state_dict({**state_dict, "state": {}})
        for param, state in restored.items():
            self.state[param] = state

    def _checked(self, state_dict: dict[str, Any]) -> dict[nn.Parameter, State]:
        """Copies of the saved state by parameter; InputError names the first that does not fit."""
        name = type(self).__name__
        saved, states = state_dict.get("param_groups"), state_dict.get("state")
        if not isinstance(saved, list) or not isinstance(states, dict):
            raise InputError(f"{name}: expected a state_dict with param_groups and state.")
        sizes, own_sizes = (
            [len(group["params"]) for group in groups] for groups in (saved, self.param_groups)
        )
        if sizes != own_sizes:
            raise InputError(
                f"{name}: the saved state is of groups of {sizes} parameters, the optimizer has"
                f" {own_sizes}. Build it from the same model, compacted if the saved one was."
            )
        strangers, found = set(states), {}
        for saved_group, group in zip(saved, self.param_groups, strict=True):
            for index, param in zip(saved_group["params"], group["params"], strict=True):
                strangers.discard(index)
                if states.get(index):
                    spec = self.state_spec(param, {**group, **saved_group})
                    where = f"{name}: state {index}"
                    found[param] = _checked_entry(param, spec, states[index], where)
        if strangers:
            odd = sorted(strangers, key=str)
            raise InputError(f"{name}: saved state of unknown parameters {odd}.")
        return found


def _checked_entry(param: nn.Parameter, spec: Spec, state: State, where: str) -> State:
    if "step" not in state:
        # Masters were split, no step was made yet.
        spec = {key: value for key, value in spec.items() if key in (LOW, MASTER)}
    if set(state) != set(spec):
        raise InputError(
            f"{where}: expected {', '.join(sorted(spec))}; found {', '.join(sorted(state))}. The"
            " optimizer, its master and its moments must be those of the run that saved it."
        )
    result = {}
    for key, (shape, dtype) in spec.items():
        value = torch.as_tensor(state[key])
        if key == "step":
            value = value.to(dtype)
        if tuple(value.shape) != shape or value.dtype is not dtype:
            raise InputError(
                f"{where}: {key} is {value.dtype} {list(value.shape)}, expected {dtype}"
                f" {list(shape)} for a parameter of {param.dtype} {list(param.shape)}."
            )
        result[key] = value.detach().clone().to("cpu" if key == "step" else param.device)
    return result
