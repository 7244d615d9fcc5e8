# SPDX-License-Identifier: Apache-2.0
"""A second tree of modules over the same Parameters and buffers.

What a rank computes with is changed module by module (wrapped, cut, replaced); the whole model
keeps its own tree, its classes and its names, and is what files are written from.
"""

import copy

from torch import nn


def structure_copy(model: nn.Module) -> nn.Module:
    """New modules, the same tensors; modules that are shared stay shared."""
    made: dict[int, nn.Module] = {}
    for module in model.modules():
        twin = module.__new__(type(module))
        # Tables of parameters, buffers, children and hooks are the twin's own.
        twin.__dict__ = {
            key: copy.copy(value) if isinstance(value, dict) else value
            for key, value in module.__dict__.items()
            # A forward on the instance is bound to the module it was put on.
            if key != "forward"
        }
        made[id(module)] = twin
    for twin in made.values():
        for name, child in twin._modules.items():
            if child is not None:
                twin._modules[name] = made[id(child)]
    return made[id(model)]
