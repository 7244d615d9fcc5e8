# SPDX-License-Identifier: Apache-2.0
"""The experts of transformers as layers: Mixtral, Qwen-MoE, OLMoE, DeepSeek, Granite-MoE, gpt-oss.

transformers stores the experts of a block as two 3-D Parameters of one module. Its decorator
`use_experts_implementation` notes on the module how they are stored, so one reader serves them all.
Here each Parameter becomes a `GroupedLinear` under the same name, which can be pruned, packed and
saved like any layer. The router stays what it is: it is no layer of a known kind, and is never
pruned.

Legend: T tokens, k experts of each, E experts, O outputs and K inputs of one expert.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.layers.experts import GroupedLinear
from gossamer.nn.moe.feed_forward import Exchange, run_experts
from gossamer.nn.surgery import inherit_hooks
from gossamer.ops.experts import Routes

_UP, _PLAIN_UP, _DOWN = "gate_up_proj", "up_proj", "down_proj"
_NOTES = ("num_experts", "has_gate", "has_bias", "is_transposed", "_apply_gate")


@dataclass(frozen=True)
class StoredProjection:
    """One 3-D Parameter of a module of experts.

    Attributes:
        name: of the Parameter; that of its bias, if there is one, ends in `_bias`.
        is_transposed: whether it is [E, K, O] instead of [E, O, K].
        has_bias: whether a bias [E, O] stands beside it.
    """

    name: str
    is_transposed: bool
    has_bias: bool

    def as_matrix(self, stored: torch.Tensor) -> torch.Tensor:
        """The rows of all experts [E O, K], behind one another; a view where it can be."""
        return (stored.transpose(1, 2) if self.is_transposed else stored).flatten(0, 1)

    def as_stored(self, matrix_RK: torch.Tensor, num_experts: int) -> torch.Tensor:
        """The Parameter as transformers stores it."""
        stored = matrix_RK.view(num_experts, -1, matrix_RK.shape[1])
        return (stored.transpose(1, 2) if self.is_transposed else stored).contiguous()


def stored_projections(module: nn.Module) -> tuple[StoredProjection, ...]:
    """The Parameters of a module of experts of transformers; none for every other module."""
    kind = type(module)
    if not kind.__module__.startswith("transformers."):
        return ()
    told: Any = module
    if not all(hasattr(module, note) for note in _NOTES):
        return ()
    if getattr(told, "has_post_expert_norm", False) or getattr(told, "_is_expert_parallel", False):
        return ()
    names = (_UP if told.has_gate else _PLAIN_UP, _DOWN)
    held = {name for name, value in module._parameters.items() if value is not None}
    expected = {*names} | ({f"{name}_bias" for name in names} if told.has_bias else set())
    if held != expected or any(module.get_parameter(name).ndim != 3 for name in names):
        return ()
    stored = (bool(told.is_transposed), bool(told.has_bias))
    return tuple(StoredProjection(name, *stored) for name in names)


def stored_experts(
    model: nn.Module,
) -> Iterator[tuple[str, nn.Module, tuple[StoredProjection, ...]]]:
    """(path, module, Parameters) of the modules of a model that hold experts of transformers."""
    for path, module in model.named_modules():
        found = stored_projections(module)
        if found:
            yield path, module, found


class RoutedExperts(nn.Module):
    """Experts of transformers whose projections are layers; called as the module it replaces.

    Args:
        experts: the module of transformers, which stays as it is.
        stored: its Parameters.

    Attributes:
        exchange: see `ExpertFFN`.
    """

    exchange: Exchange | None = None

    def __init__(self, experts: nn.Module, stored: tuple[StoredProjection, ...]) -> None:
        super().__init__()
        source: Any = experts
        self.num_experts = int(source.num_experts)
        self.has_gate = bool(source.has_gate)
        for projection in stored:
            setattr(self, projection.name, _layer(source, projection))
        self._names = tuple(projection.name for projection in stored)
        # The rest of the module knows the gate: an activation, limits. It keeps no weights.
        self.rules = _without_weights(experts)
        inherit_hooks(self, experts)

    @property
    def layers(self) -> tuple[nn.Module, nn.Module]:
        """The layer that reads the tokens, and the one that gives the result."""
        up, down = (self.get_submodule(name) for name in self._names)
        return up, down

    def act(self, h_SF: torch.Tensor) -> torch.Tensor:
        """What stands between the projections."""
        rules: Any = self.rules
        result: torch.Tensor = rules._apply_gate(h_SF) if self.has_gate else rules.act_fn(h_SF)
        return result

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """The weighted sum of what the chosen experts make of every token, [T, D]."""
        up, down = (self._modules[name] for name in self._names)
        routes = Routes.of_choice(top_k_index, self.num_experts)
        weights_S = routes.weights(top_k_weights)
        return run_experts(
            up, self.act, down, hidden_states, routes, weights_S, exchange=self.exchange
        )


def adopt_experts(model: nn.Module) -> nn.Module:
    """Make layers of the experts of transformers inside `model`, and give `model` back.

    The numbers are shared where transformers stores them row by row, else copied. Hooks are taken
    over. Optimizers that were made before hold the old Parameters.
    """
    for path, module, stored in list(stored_experts(model)):
        if "forward" in module.__dict__:
            raise TargetError(
                f"{path}: the forward of this {type(module).__name__} was replaced on the instance;"
                " its experts cannot become layers. Restore it first."
            )
        if not path:
            raise TargetError("the model is itself one module of experts. Wrap it in a module.")
        parent, _, key = path.rpartition(".")
        model.get_submodule(parent)._modules[key] = RoutedExperts(module, stored)
    return model


def stored_layers(
    module: nn.Module, stored: tuple[StoredProjection, ...]
) -> tuple[GroupedLinear, GroupedLinear]:
    """Layers over the Parameters of a module of experts, which stays as it is."""
    up, down = (_layer(module, projection) for projection in stored)
    return up, down


def _layer(source: Any, projection: StoredProjection) -> GroupedLinear:
    weight = source._parameters[projection.name]
    rows, columns = weight.shape[1:][:: -1 if projection.is_transposed else 1]
    layer = GroupedLinear(
        len(weight), columns, rows, projection.has_bias, device="meta", dtype=weight.dtype
    )
    matrix_RK = projection.as_matrix(weight.detach())
    layer.weight = nn.Parameter(matrix_RK, requires_grad=weight.requires_grad)
    if projection.has_bias:
        bias = source._parameters[f"{projection.name}_bias"]
        layer.bias = nn.Parameter(bias.detach().flatten(), requires_grad=bias.requires_grad)
    return layer.train(source.training)


def _without_weights(experts: nn.Module) -> nn.Module:
    """A module of the same class without Parameters and hooks."""
    rules = copy.copy(experts)
    for name in [key for key in rules.__dict__ if key.endswith("_hooks")]:
        rules.__dict__[name] = type(rules.__dict__[name])()
    rules._parameters, rules._modules = {}, dict(experts._modules)
    rules._buffers = dict(experts._buffers)
    return rules
