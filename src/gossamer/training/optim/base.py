# SPDX-License-Identifier: Apache-2.0
"""What the optimizers share: where master and moments live, steps in pieces, exact state.

A step goes through a parameter in pieces that fit a cache: read master, gradient and moments as
float32, update them, write them back. So nothing of a parameter's size is allocated, and the kept
state is all there is: per bfloat16 parameter 2 bytes of weight, 2 of gradient, 2 of low bits and 4
per moment, or 1 of low bits and 1 per moment. Master "wide" is mixed precision as others have it: a
float32 master and a float32 gradient beside the 16-bit ones.
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
from gossamer.training.optim.pieces import (
    GRADIENT,
    LOW,
    MASTER,
    ROUNDED,
    SCRATCH,
    numbers_of,
)

# Parameters and their settings, as torch keeps them.
ParamGroup = dict[str, Any]
Master = Literal["split", "split8", "fp32", "wide"]
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
        self._after_step()
        return loss

    def _before_step(self) -> None:
        """What must be known of all gradients before the first parameter moves."""

    def _after_step(self) -> None:
        """What is not true any more once all parameters moved."""

    @abstractmethod
    def _step_parameter(self, param: nn.Parameter, group: ParamGroup) -> None:
        """One step of the algorithm for a parameter that has a gradient."""


class SmallStateOptimizer(StepsEachParameter):
    """Base of AdamW, SGD, LAMB and LARS.

    Args:
        params: Parameters or groups of them; `master`, `moments` and every number may be set per
            group. float32 and float64 parameters are their own master.
        master: of bfloat16 parameters. "split": the 16 low bits that make the weight an exact
            float32. "split8": 8 of them, a 24-bit master. "fp32": a float32 copy. "wide": a float32
            copy, and gradients that are raised to float32, too. float16 takes the last two.
        moments: "fp32" (float64 for float64 parameters), or "8bit" codes.
        settings: of the algorithm.
    """

    MOMENTS: ClassVar[tuple[StoredMoment, ...]] = ()
    # Settings that are numbers from 0, and what they must stay below.
    RANGES: ClassVar[dict[str, float]] = {}

    def __init__(self, params: Any, master: Master, moments: Moments, **settings: Any) -> None:
        super().__init__(params, {**settings, "master": master, "moments": moments})
        self._masked: dict[nn.Parameter, MaskedWeight] = {}
        self._raised: set[nn.Parameter] = set()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # A copy of the optimizer knows groups and state only.
        self.__dict__.setdefault("_masked", {})
        self.__dict__.setdefault("_raised", set())

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
            if param.dtype is torch.float16 and group["master"] not in ("fp32", "wide"):
                raise InputError(
                    f"{what} float16, which is not the upper half of a float32. Use bfloat16, or"
                    ' master="fp32" or "wide".'
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
        if group["master"] in ("fp32", "wide"):
            return {**spec, MASTER: (shape, torch.float32)}
        return {**spec, LOW: (shape, torch.int8 if group["master"] == "split8" else torch.int16)}

    def gradient_of(self, param: nn.Parameter) -> torch.Tensor | None:
        """The gradient that a step takes: in float32 where it was raised, else `param.grad`."""
        if param in self._raised:
            return cast("torch.Tensor", self.state[param][GRADIENT])
        return param.grad

    @torch.no_grad()
    def raise_gradients(self, factor: float = 1.0) -> None:
        """Write 16-bit gradients of groups with master "wide" into float32 ones, times a factor.

        A step does so itself. A loss scale is taken off by doing it before, with its inverse; what
        changes `gradient_of` afterwards changes the step.
        """
        for group in self.param_groups:
            if group["master"] != "wide":
                continue
            for param in group["params"]:
                is_narrow = param.dtype in (torch.bfloat16, torch.float16)
                if param.grad is None or not is_narrow or param in self._raised:
                    continue
                state = self.state[param]
                if GRADIENT not in state or state[GRADIENT].shape != param.shape:
                    state[GRADIENT] = torch.empty(
                        param.shape, dtype=torch.float32, device=param.device
                    )
                # In this order: a product of 16-bit numbers is rounded to 16 bits.
                state[GRADIENT].copy_(param.grad).mul_(factor)
                if DenseHome.of(param) is None:
                    state.pop(ROUNDED, None)
                elif ROUNDED not in state or state[ROUNDED].shape != param.shape:
                    state[ROUNDED] = torch.empty(
                        param.shape, dtype=param.dtype, device=param.device
                    )
                self._raised.add(param)

    def _before_step(self) -> None:
        self.raise_gradients()

    def _after_step(self) -> None:
        self._raised.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients, or set them to zero."""
        self._raised.clear()
        super().zero_grad(set_to_none)

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

    def split_masters(self, params: Any = None, *, dtype: torch.dtype = torch.bfloat16) -> int:
        """Halve float32 parameters in place: bfloat16 weights now, their low bits in the state.

        No bit of a master is lost. Gradients that are there are rounded. Layers must take 16-bit
        weights: compact ones do, whatever the type of their input.

        Args:
            params: which of the held parameters; None for all float32 ones.
            dtype: torch.float16 gives float16 weights beside masters "fp32" and "wide".

        Returns:
            how many parameters were split.
        """
        if dtype not in (torch.bfloat16, torch.float16):
            raise InputError(
                f"{type(self).__name__}.split_masters: dtype must be torch.bfloat16 or"
                f" torch.float16, got {dtype}."
            )
        chosen = None if params is None else {id(param) for param in params}
        count = 0
        for group in self.param_groups:
            for param in group["params"]:
                wanted = chosen is None or id(param) in chosen
                if wanted and param.dtype is torch.float32:
                    self._split_one(param, group["master"], dtype)
                    count += 1
        return count

    def _split_one(self, param: nn.Parameter, kind: Master, dtype: torch.dtype) -> None:
        if dtype is torch.float16 and kind not in ("fp32", "wide"):
            raise InputError(
                f"{type(self).__name__}.split_masters: float16 is not the upper half of a float32,"
                f' so master={kind!r} cannot be kept. Use master="fp32" or "wide", or bfloat16.'
            )
        if DenseHome.of(param) is not None:
            raise InputError(
                f"{type(self).__name__}.split_masters: a parameter of {list(param.shape)} has its"
                " numbers in a dense weight. Split first, then give_up_values()."
            )
        master, gradient, state = param.detach(), param.grad, self.state[param]
        if dtype is torch.float16:
            weight, state[MASTER] = master.to(dtype), master.clone()
        elif kind in ("fp32", "wide"):
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
        state = {k: v for k, v in self.state.get(param, {}).items() if k not in SCRATCH}
        mapped: State = {}
        for moment in self.MOMENTS:
            if moment.key in state:
                mapped |= moment.mapped(state, convert)
        mapped |= {key: convert(state[key]) for key in (LOW, MASTER) if key in state}
        return {**state, **mapped}

    def state_dict(self) -> dict[str, Any]:
        """Groups and state; what every step makes anew is left out."""
        found = super().state_dict()
        states = found["state"].items()
        found["state"] = {
            index: {key: value for key, value in state.items() if key not in SCRATCH}
            for index, state in states
        }
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over groups and state bit by bit; what does not fit is refused beforehand."""
        restored = self._checked(state_dict)
        # torch casts state to the dtype of the parameter, which would halve moments and low bits.
        super().load_state_dict({**state_dict, "state": {}})
        self._raised.clear()
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
