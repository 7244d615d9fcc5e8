# SPDX-License-Identifier: Apache-2.0
"""A model becomes another one in place: of another class or with other sizes, same names kept.

Parameters that have the same name and shape in both stay the very objects that they were, so that
an optimizer goes on with them.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack

import torch
from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.attention import attention_states, restore_attention
from gossamer.nn.moe import adopt_experts
from gossamer.nn.surgery import inherit_hooks

Numbers = Mapping[str, torch.Tensor]


def become(model: nn.Module, build: Callable[[], nn.Module], numbers: Numbers) -> None:
    """Let `model` be what `build` makes, with the numbers given and its own for all the rest.

    Args:
        model: changed in place; as it was if an error is raised.
        build: makes the other one; its numbers do not matter.
        numbers: of tensors that are not in `model` with that name and shape.
    """
    twin = adopt_experts(_built(build, model))
    old: dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    old |= dict(model.named_buffers(remove_duplicate=False))
    made: dict[int, nn.Parameter] = {}
    for path, module in twin.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is None or name in module._non_persistent_buffers_set:
                continue
            given = numbers.get(prefix + name, old.get(prefix + name))
            if given is None or given.shape != tensor.shape:
                found = "nothing" if given is None else f"{list(given.shape)}"
                raise TargetError(
                    f"{prefix}{name}: {type(twin).__name__} wants {list(tensor.shape)}, and the"
                    f" model has {found}. Its settings do not fit that class."
                )
            if name in module._buffers:
                module._buffers[name] = given
            elif isinstance(given, nn.Parameter):
                module._parameters[name] = given
            else:
                key = id(tensor)
                made.setdefault(key, nn.Parameter(given))
                module._parameters[name] = made[key]
    restore_attention(twin, attention_states(model))
    before = dict(model.named_modules())
    for path, module in twin.named_modules():
        if path in before:
            inherit_hooks(module, before[path])
        else:
            module.train(model.training)
    for name in ("generation_config", "name_or_path"):
        if name in model.__dict__:
            twin.__dict__[name] = model.__dict__[name]
    model.__class__ = type(twin)
    model.__dict__.clear()
    model.__dict__.update(twin.__dict__)


def _built(build: Callable[[], nn.Module], model: nn.Module) -> nn.Module:
    """What `build` makes, without a number drawn: random generators stay where they were."""
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        if hasattr(model, "config"):
            from transformers.initialization import no_init_weights

            stack.enter_context(no_init_weights())
        return build()
