# SPDX-License-Identifier: Apache-2.0
"""GPT-2's Conv1D layers as ordinary Linears, which can be pruned weight by weight.

transformers writes the linear layers of GPT-2 as Conv1D, with the weight transposed. A Linear in
its place computes the same, and everything that masks, packs or runs Linears can have it.
"""

from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.surgery import inherit_hooks
from gossamer.nn.surgery.slimming.matrix_layer import matrix_of, stores_transposed


def conv1d_to_linear(model: nn.Module) -> nn.Module:
    """Replace every Conv1D of transformers inside `model` by a Linear, and give `model` back.

    Hooks are taken over. Optimizers that were made before hold the old weights.
    """
    made: dict[nn.Module, nn.Linear] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and stores_transposed(child):
                if child not in made:
                    made[child] = _linear(child)
                parent._modules[name] = made[child]
    return model


def conv1d_paths(model: nn.Module) -> list[str]:
    """Names of the Conv1D layers of transformers inside `model`."""
    return [name for name, module in model.named_modules() if stores_transposed(module)]


def _linear(layer: nn.Module) -> nn.Linear:
    if "forward" in layer.__dict__:
        raise TargetError("a Conv1D whose forward was replaced on the instance cannot be a Linear.")
    matrix = matrix_of(layer)
    bias = layer._parameters["bias"]
    result = nn.Linear(matrix.shape[1], matrix.shape[0], device="meta", dtype=matrix.dtype)
    weight = layer._parameters["weight"]
    needs_gradient = weight is not None and weight.requires_grad
    result.weight = nn.Parameter(matrix.detach().contiguous(), needs_gradient)
    result.bias = bias  # type: ignore[assignment]  # a Conv1D always has one
    inherit_hooks(result, layer)
    return result
